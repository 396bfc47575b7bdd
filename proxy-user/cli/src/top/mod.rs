// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan top`: lists the traffic of each service port or backend, what was refused and why, or
//! the processor time of each program; what moves most first.

mod looks;
mod of_port;
mod programs;
mod reasons;
mod rows;

use anyhow::Result;

use self::looks::{Looks, Sample};
use super::{args::ListArgs, list::list, render::Row};

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
    select.check()?;
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
    let ListArgs { pins, select, show } = &args.list;
    let take = || Sample::take(&pins.pin_dir, select, args.programs);
    let mut before = None;
    list(show, || {
        if args.programs && before.is_none() {
            before = Some(take()?);
            std::thread::sleep(show.look.interval);
        }
        let looks = Looks {
            now: take()?,
            before: before.take(),
        };
        let rows = rows(&looks);
        args.list.note_if_empty(rows.is_empty(), &[]);
        before = Some(looks.now);
        Ok(rows)
    })
}
