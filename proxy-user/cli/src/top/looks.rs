// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Samples of the maps' contents, and the rows that `top` makes from one sample or from the
//! difference of two.

use std::{collections::HashMap, path::Path, time::Instant};

use anyhow::Result;
use datapath::read::{Counted, Reader, ServicePort};

use super::{
    programs::{ProgramRow, Programs},
    reasons::{self, ReasonRow, Tally},
    rows::{self, Before, TopRow},
};
use crate::args::Select;

/// The contents of the maps at one time.
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) counters: Vec<u64>,
    pub(super) counted: Counted,
    pub(super) programs: Programs,
    pub(super) names: HashMap<u32, ServicePort>,
}

impl Sample {
    /// Reads the maps, and with `is_measured` also the programs' run times. Fails if `select` names
    /// an unknown service.
    pub(super) fn take(pin_dir: &Path, select: &Select, is_measured: bool) -> Result<Self> {
        let reader = Reader::open(pin_dir)?;
        select.check_known(&reader)?;
        Ok(Self {
            at: Instant::now(),
            // Read before `counted`, which has the counts of each service port: see `Tally`.
            counters: reader.counters()?,
            counted: reader.counted()?,
            programs: if is_measured {
                Programs::read(&reader)
            } else {
                Programs::default()
            },
            names: reader.into_service_ports(),
        })
    }
    fn tally(&self) -> Tally<'_> {
        Tally {
            refused: &self.counted.refused,
            counters: &self.counters,
        }
    }
}

/// The latest sample, and the one before it, if there is one.
pub(super) struct Looks {
    pub(super) now: Sample,
    pub(super) before: Option<Sample>,
}

impl Looks {
    /// Returns the seconds between the two samples; None if there is only one.
    pub(super) fn seconds(&self) -> Option<f64> {
        let before = self.before.as_ref()?;
        Some((self.now.at - before.at).as_secs_f64())
    }

    /// Returns a row for each service port that `select` selects, or with `backends` for each
    /// backend.
    pub(super) fn rows(&self, select: &Select, backends: bool) -> Vec<TopRow> {
        let before = self.before.as_ref().map(|before| Before {
            counted: &before.counted,
            seconds: (self.now.at - before.at).as_secs_f64(),
        });
        let now = &self.now;
        let mut rows = rows::rows(&now.counted, before.as_ref(), &now.names, backends);
        rows.retain(|row| row.of.is_selected(select, row.endpoint));
        rows
    }

    pub(super) fn reasons(&self, select: &Select) -> Vec<ReasonRow> {
        let before = self.before.as_ref();
        let before = before.map(|before| before.tally()).zip(self.seconds());
        let mut rows = reasons::rows(self.now.tally(), before, &self.now.names);
        rows.retain(|row| row.of.is_selected(select, None));
        rows
    }

    pub(super) fn programs(&self) -> Vec<ProgramRow> {
        let now = &self.now;
        self.before.as_ref().map_or_else(Vec::new, |before| {
            now.programs.since(&before.programs, now.at - before.at)
        })
    }
}
