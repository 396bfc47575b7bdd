// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan top`: lists the traffic of each service port or backend, or what was refused and why;
//! what moves most first.

mod reasons;
mod rows;

use std::{collections::HashMap, time::Instant};

use anyhow::Result;
use datapath::read::{Counted, Reader, ServicePort};

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
    show(args, |now, before| {
        let mut rows = rows::rows(now, before, args.backends);
        rows.retain(|row| rows::selects(select, &row.of, row.endpoint));
        rows
    })
}

/// The sample before the latest one, if there is one, and the seconds from then until that.
type Before<'a> = Option<(&'a Sample, f64)>;

fn show<R: Row>(args: &TopArgs, rows: impl Fn(&Sample, Before<'_>) -> Vec<R>) -> Result<()> {
    let mut before: Option<Sample> = None;
    list_maps(&args.list, &[], |reader| {
        let now = Sample::take(reader)?;
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
    names: HashMap<u32, ServicePort>,
}

impl Sample {
    fn take(reader: Reader) -> Result<Self> {
        Ok(Self {
            at: Instant::now(),
            counters: reader.counters()?,
            counted: reader.counted()?,
            names: reader.into_service_ports(),
        })
    }
}
