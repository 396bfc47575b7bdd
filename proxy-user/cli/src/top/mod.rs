// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan top`: lists the traffic of each service port or backend, what was refused and why, or
//! the processor time of each program; what moves most first.

mod programs;
mod reasons;
mod rows;

use std::{collections::HashMap, mem::replace, thread, time::Instant};

use anyhow::Result;
use datapath::read::{Counted, Reader, ServicePort};

use self::programs::Programs;
use super::{
    args::ListArgs,
    list::{Row, list_maps},
};

/// Arguments of `portolan top`.
#[derive(clap::Args, Clone, Debug)]
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
        return show(args, |now, before| {
            let mut rows = reasons::rows(now, before);
            rows.retain(|row| rows::selects(select, &row.of, None));
            rows
        });
    }
    if !args.programs {
        return show(args, |now, before| {
            let mut rows = rows::rows(now, before, args.backends);
            rows.retain(|row| rows::selects(select, &row.of, row.endpoint));
            rows
        });
    }
    // The kernel measures the run times of programs as long as this value exists.
    let _measuring = programs::measure().inspect_err(|why| eprintln!("portolan top: {why}"));
    show(args, |now, before| match before {
        Some((before, seconds)) => programs::since(&now.programs, &before.programs, seconds),
        None => Vec::new(),
    })
}

/// The sample before the latest one, if there is one, and the seconds from then until that.
type Before<'a> = Option<(&'a Sample, f64)>;

fn show<R: Row>(args: &TopArgs, rows: impl Fn(&Sample, Before<'_>) -> Vec<R>) -> Result<()> {
    let mut before: Option<Sample> = None;
    list_maps(&args.list, &[], |reader| {
        let mut now = Sample::take(reader, args.programs)?;
        if args.programs && before.is_none() {
            thread::sleep(args.list.show.look.interval);
            let reader = Reader::open(&args.list.pins.pin_dir)?;
            before = Some(replace(&mut now, Sample::take(reader, true)?));
        }
        let then = before.as_ref();
        let then = then.map(|then| (then, (now.at - then.at).as_secs_f64()));
        let rows = rows(&now, then);
        before = Some(now);
        Ok(rows)
    })
}

/// The contents of the maps at one time.
struct Sample {
    at: Instant,
    /// The values of all counters. They are read before `counted`, which has the counts of each
    /// service port, so they are never too large.
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
            counters: reader.counters()?,
            counted: reader.counted()?,
            programs: match is_measured {
                true => programs::read(&reader),
                false => Programs::default(),
            },
            names: reader.into_service_ports(),
        })
    }
}
