// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copies the contents of old generations of maps into the new one, in parts, so that the caller
//! can do other work in between. Each part may be repeated.

use std::{
    path::{Path, PathBuf},
    time::Instant,
};

use proxy_common::{V4, V6};

use super::{
    flows, hints, is_drained, is_over,
    references::{Backends, Old, References, Services},
    sockets,
};
use crate::error::DatapathError;

/// How many entries were copied from old maps to new ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Carried {
    /// Entries of the flow tables; a flow has two or three.
    pub flows: usize,
    /// Entries of the socket maps.
    pub sockets: usize,
    /// Entries that did not fit, because the new tables are smaller than what the old ones contain.
    pub lost: usize,
}

/// What is copied at a time from one old generation.
#[derive(Clone, Copy, Debug)]
enum Part {
    Services,
    BackendsV4,
    BackendsV6,
    Counters,
    Hints,
    FlowsV4,
    FlowsV6,
    SocketsV4,
    SocketsV6,
    Affinity,
}

impl Part {
    /// In this order: ids come before all that contains them, and hints before the flows that need
    /// them.
    const ALL: [Self; 10] = [
        Self::Services,
        Self::BackendsV4,
        Self::BackendsV6,
        Self::Counters,
        Self::Hints,
        Self::FlowsV4,
        Self::FlowsV6,
        Self::SocketsV4,
        Self::SocketsV6,
        Self::Affinity,
    ];
}

/// How far copying is.
#[derive(Debug, Default)]
pub(super) struct Copying {
    /// The next part: its position among those of all old generations.
    pub(super) next: usize,
    /// True if the ids are to be read from the maps, false if they are known from the last time.
    /// Changes in the new maps since then do not matter: a removed backend gets another generation.
    pub(super) reads: bool,
    /// For each old generation: which ids in the new maps its ids correspond to.
    references: Vec<References>,
    /// True if the counters of the old maps must still be added to the new ones.
    counts: bool,
    pub(super) carried: Carried,
    /// How many generations have programs in front of those with the new maps. What those behind
    /// have copied from these is not copied once more.
    in_front: usize,
    /// True if the copies of flows that the new maps have are removed first.
    pub(super) forgets: bool,
    /// True if flows are removed from the old maps.
    pub(super) takes: bool,
    /// How many entries did not fit so far, this time. They are tried again each time.
    lost: usize,
}

impl Copying {
    /// `counts`: whether counters are copied, once.
    pub(super) fn new(counts: bool, in_front: usize) -> Self {
        Self {
            in_front,
            reads: true,
            counts,
            ..Self::default()
        }
    }
    /// Copies what `target` lacks from `sources`, directories of generations, in parts until
    /// `deadline`, but one at least. True if all is copied; then the next call begins anew.
    pub(super) fn go_on(
        &mut self,
        sources: &[PathBuf],
        target: &Path,
        deadline: Option<Instant>,
    ) -> Result<bool, DatapathError> {
        let parts = sources.len() * Part::ALL.len();
        while self.next < parts {
            let generation = self.next / Part::ALL.len();
            let part = Part::ALL[self.next % Part::ALL.len()];
            self.copy(part, generation, &sources[generation], target)?;
            self.next += 1;
            if is_over(deadline) && self.next < parts {
                return Ok(false);
            }
        }
        self.carried.lost = self.carried.lost.max(self.lost);
        (self.next, self.lost, self.reads, self.counts) = (0, 0, false, false);
        self.forgets = false;
        Ok(true)
    }

    fn copy(
        &mut self,
        part: Part,
        generation: usize,
        source: &Path,
        target: &Path,
    ) -> Result<(), DatapathError> {
        if self.references.len() <= generation {
            self.references
                .resize_with(generation + 1, References::default);
        }
        if self.forgets && generation == 0 {
            let forgotten = match part {
                Part::FlowsV4 => flows::forget_copies::<V4>(target)?,
                Part::FlowsV6 => flows::forget_copies::<V6>(target)?,
                _ => 0,
            };
            self.carried.flows = self.carried.flows.saturating_sub(forgotten);
        }
        // Flows are taken from drained maps only.
        let is_behind = generation >= self.in_front && !is_drained(target);
        let references = &mut self.references[generation];
        let References {
            services,
            backends: [v4, v6],
        } = references;
        match part {
            Part::Services | Part::BackendsV4 | Part::BackendsV6 if !self.reads => return Ok(()),
            Part::Services => *services = Services::read(source, target)?,
            Part::BackendsV4 => *v4 = Backends::read::<V4>(source, target, services)?,
            Part::BackendsV6 => *v6 = Backends::read::<V6>(source, target, services)?,
            _ => {}
        }
        let old = Old {
            source,
            target,
            references,
        };
        let (new, lost) = match part {
            Part::Counters if self.counts => return hints::carry_counters(&old),
            Part::Hints => return hints::carry(&old),
            Part::FlowsV4 => flows::carry::<V4>(&old, is_behind, self.takes)?,
            Part::FlowsV6 => flows::carry::<V6>(&old, is_behind, self.takes)?,
            Part::SocketsV4 => sockets::carry::<V4>(&old)?,
            Part::SocketsV6 => sockets::carry::<V6>(&old)?,
            Part::Affinity => {
                sockets::carry_affinity::<V4>(&old)?;
                sockets::carry_affinity::<V6>(&old)?;
                return sockets::carry_pods(&old);
            }
            _ => return Ok(()),
        };
        if matches!(part, Part::FlowsV4 | Part::FlowsV6) {
            self.carried.flows += new;
        } else {
            self.carried.sockets += new;
        }
        self.lost += lost;
        Ok(())
    }
}
