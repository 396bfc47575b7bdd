// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan cleanup`: removes every trace of portolan, at once or after its last flow has ended.

use std::{
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use datapath::{
    Datapath, Options, cleanup,
    maps::{
        pinned_capacities,
        pins::{Generation, generations},
    },
};
use proxy_common::flow::IdleTimes;

use super::{conntrack, frame::Pins, signals::end_by_signal, terminal::print};

/// How often idle flows are removed and the remaining ones counted. Often, because an ended flow
/// that stays can catch a new connection of the other proxy.
const SWEEP: Duration = Duration::from_millis(250);
/// How often the number of remaining flows is printed.
const PROGRESS: Duration = Duration::from_secs(10);

/// Arguments of `portolan cleanup`.
#[derive(clap::Args, Clone, Debug)]
pub struct CleanupArgs {
    #[command(flatten)]
    pub pins: Pins,
    /// Clean up even if a process that hangs holds the pin directory. An agent that works puts back
    /// what it holds: stop it first.
    #[arg(long, conflicts_with = "drain")]
    pub force: bool,
    /// Leave new connections to another proxy at once, but serve existing ones until the last has
    /// ended.
    #[arg(long)]
    pub drain: bool,
    /// With --drain: remove everything after this time, such as 30m, also if flows are left. Their
    /// connections break, unless they were translated at their sockets.
    #[arg(long, value_name = "DURATION", requires = "drain", value_parser = duration)]
    pub timeout: Option<Duration>,
    /// Only list what would be removed. Changes nothing, and works beside a running agent.
    #[arg(long, conflicts_with_all = ["force", "drain", "stay"])]
    pub dry_run: bool,
    /// Wait for SIGTERM at the end, because a container of a DaemonSet must not exit.
    #[arg(long)]
    pub stay: bool,
}

/// Removes portolan's attachments, pins and rules, and prints what was removed.
pub(super) fn run(args: &CleanupArgs) -> Result<()> {
    if args.dry_run {
        let mut found = cleanup::planned(&args.pins.pin_dir)?;
        found.extend(cleanup::rules(true));
        let notes = conntrack::notes(&args.pins.pin_dir);
        found.extend(conntrack::put_back(&notes, true));
        return print_objects(&args.pins.pin_dir, "would remove", &found);
    }
    let signals = end_by_signal()?;
    if args.drain {
        drain(&args.pins.pin_dir, args.timeout)?;
    }
    remove(&args.pins.pin_dir, args.force)?;
    if args.stay {
        println!("nothing of portolan is left on this node; waiting for SIGTERM");
        signals.stay();
    }
    Ok(())
}

fn duration(text: &str) -> Result<Duration, String> {
    config::duration(text).ok_or_else(|| "write it like 90s, 30m or 2h".to_owned())
}

/// Leaves new connections to another proxy, and waits until no flow is left, or for `timeout`.
fn drain(pin_dir: &Path, timeout: Option<Duration>) -> Result<()> {
    if let Some(reason) = undrainable(&generations(pin_dir).context("read the pin directory")?) {
        bail!("{reason}; nothing was changed");
    }
    let Some(capacities) = pinned_capacities(pin_dir)? else {
        return Ok(());
    };
    let mut datapath = Datapath::open(&Options {
        pin_dir: pin_dir.to_owned(),
        capacities,
        adopt_drained: true,
        ..Options::default()
    })?;
    datapath.drain()?;
    println!(
        "new connections are no longer served, existing ones go on; if this command is interrupted, run it again"
    );
    datapath.set_idle_times(IdleTimes::DRAINING);
    let start = Instant::now();
    let mut print_at = start;
    loop {
        let flows = datapath.sweep_flows()?;
        let left = flows.v4.flows + flows.v6.flows;
        if flows.complete && flows.v4.entries + flows.v6.entries == 0 {
            return Ok(());
        }
        if timeout.is_some_and(|timeout| start.elapsed() >= timeout) {
            println!("{left} flows are left when the time is over; their connections end");
            return Ok(());
        }
        if left > 0 && Instant::now() >= print_at {
            println!("{left} flows are left; `portolan flows` lists them");
            print_at = Instant::now() + PROGRESS;
        }
        sleep(SWEEP);
    }
}

/// Returns why this version cannot drain these generations of maps (sets of maps that earlier
/// agents have made); None if it can.
fn undrainable(all: &[Generation]) -> Option<String> {
    let names: Vec<_> = all.iter().map(|one| one.name()).collect();
    let names = names.join(", ");
    match all {
        [] => None,
        [one] if one.is_known() => None,
        [_] => Some(format!(
            "the maps ({names}) are another version's, so this one cannot serve their connections to the end: run this command \
             of the version whose agent ran last, or start this version's agent once, which takes them over"
        )),
        _ => Some(format!(
            "one generation of maps was taking over from another ({names}) when the agent ended: start the agent once, which goes \
             on, then run this command again"
        )),
    }
}

pub(super) fn remove(pin_dir: &Path, force: bool) -> Result<()> {
    let notes = conntrack::notes(pin_dir);
    let mut removed = cleanup::cleanup(pin_dir, force)?;
    removed.extend(cleanup::rules(false));
    removed.extend(conntrack::put_back(&notes, false));
    print_objects(pin_dir, "removed", &removed)
}

/// Prints one line per object, each after the text `what`.
fn print_objects(pin_dir: &Path, what: &str, objects: &[String]) -> Result<()> {
    let lines = objects.iter().map(|object| format!("{what} {object}\n"));
    let mut text: String = lines.collect();
    if text.is_empty() {
        let place = pin_dir.display();
        text = format!("nothing to remove: no pins in {place}, no filters\n");
    }
    print(&text).context("write")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proxy_common::maps::LAYOUT_VERSION;

    #[test]
    fn cleanup_can_drain_only_a_single_generation_of_maps_of_this_layout() {
        let of = |layout, number| Generation { number, layout };
        assert_eq!(undrainable(&[]), None);
        assert_eq!(undrainable(&[of(LAYOUT_VERSION, 2)]), None);
        let other = undrainable(&[of(LAYOUT_VERSION + 1, 3)]).expect("another version's");
        let name = format!("v{}-3", LAYOUT_VERSION + 1);
        assert!(other.contains(&name) && other.contains("start this version's agent"));
        let two = [of(LAYOUT_VERSION, 0), of(LAYOUT_VERSION, 1)];
        assert!(undrainable(&two).is_some_and(|reason| reason.contains("start the agent once")));
    }
}
