// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan top`: lists the traffic of each service port or backend, what was refused and why, or
//! the processor time of each program; what moves most first.

mod programs;
mod reasons;
mod rows;

use std::{collections::HashMap, thread, time::Instant};

use anyhow::Result;
use datapath::read::{Counted, Reader, ServicePort};

use self::{
    programs::{ProgramRow, Programs},
    reasons::{ReasonRow, Tally},
    rows::{Before, TopRow},
};
use super::{
    args::{ListArgs, Select},
    list::list_maps,
    render::Row,
};

/// Arguments of `portolan top`.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct TopArgs {
    #[command(flatten)]
    pub list: ListArgs,
    /// A line for each backend instead of one for each service port.
    #[arg(long)]
    pub backends: bool,
    /// A line for each reason for which a service port has refused something.
    #[arg(long, conflicts_with = "backends")]
    pub reasons: bool,
    /// A line for each program that runs, with its processor time, which the kernel measures only
    /// meanwhile: for --interval before the first output.
    #[arg(long, conflicts_with_all = ["backends", "reasons", "name", "namespace", "all_namespaces", "address", "port", "protocol"])]
    pub programs: bool,
}

/// Lists the rows: what was counted so far, and with --watch also the rates since the last look.
pub(super) fn run(args: &TopArgs) -> Result<()> {
    let select = &args.list.select;
    if args.reasons {
        return show(args, |looks| looks.reasons(select));
    }
    if !args.programs {
        return show(args, |looks| looks.rows(select, args.backends));
    }
    // The kernel measures the run times of programs as long as this value exists.
    let _measuring = programs::measure().inspect_err(|why| eprintln!("portolan top: {why}"));
    show(args, Looks::programs)
}

fn show<R: Row>(args: &TopArgs, rows: impl Fn(&Looks) -> Vec<R>) -> Result<()> {
    let mut before = None;
    list_maps(&args.list, &[], |reader| {
        let mut now = Sample::take(reader, args.programs)?;
        if args.programs && before.is_none() {
            thread::sleep(args.list.show.look.interval);
            let reader = Reader::open(&args.list.pins.pin_dir)?;
            before = Some(std::mem::replace(&mut now, Sample::take(reader, true)?));
        }
        let looks = Looks {
            now,
            before: before.take(),
        };
        let rows = rows(&looks);
        before = Some(looks.now);
        Ok(rows)
    })
}

/// The contents of the maps at one time.
struct Sample {
    at: Instant,
    counters: Vec<u64>,
    counted: Counted,
    programs: Programs,
    names: HashMap<u32, ServicePort>,
}

impl Sample {
    /// Reads the maps, and with `is_measured` also the programs' run times.
    fn take(reader: Reader, is_measured: bool) -> Result<Self> {
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
struct Looks {
    now: Sample,
    before: Option<Sample>,
}

impl Looks {
    /// Returns the seconds between the two samples; None if there is only one.
    fn seconds(&self) -> Option<f64> {
        let before = self.before.as_ref()?;
        Some((self.now.at - before.at).as_secs_f64())
    }

    /// Returns a row for each service port that `select` selects, or with `backends` for each
    /// backend.
    fn rows(&self, select: &Select, backends: bool) -> Vec<TopRow> {
        let before = self.before.as_ref().map(|before| Before {
            counted: &before.counted,
            seconds: (self.now.at - before.at).as_secs_f64(),
        });
        let now = &self.now;
        let mut rows = rows::rows(&now.counted, before.as_ref(), &now.names, backends);
        rows.retain(|row| row.of.is_selected(select, row.endpoint));
        rows
    }

    fn reasons(&self, select: &Select) -> Vec<ReasonRow> {
        let before = self.before.as_ref();
        let before = before.map(|before| before.tally()).zip(self.seconds());
        let mut rows = reasons::rows(self.now.tally(), before, &self.now.names);
        rows.retain(|row| row.of.is_selected(select, None));
        rows
    }

    fn programs(&self) -> Vec<ProgramRow> {
        let now = &self.now;
        self.before.as_ref().map_or_else(Vec::new, |before| {
            now.programs.since(&before.programs, now.at - before.at)
        })
    }
}
