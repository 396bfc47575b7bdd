// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Disturbances of the agent and of what it has made, one after the other, in an order that the
//! seed decides. What none of them may break by design must not fail.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Mutex,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use lab::{
    bpf::change_pinned,
    lock,
    node::{
        foreign::{ChainPosition, END, Foreign},
        topology::UPLINK,
    },
    random::Random,
};
use nix::sys::signal::Signal;
use proxy_common::{Settings, maps};

use crate::{
    proxy::{Programs, Running},
    record::Span,
    world::World,
};

/// For a failure after a disturbance has ended: the client's own time limit.
const GRACE: Duration = Duration::from_secs(5);
/// The time limit until all is well again.
const REPAIRED: Duration = Duration::from_secs(240);
/// How long all has to be well before the next disturbance.
const WELL: Duration = Duration::from_millis(1_500);

/// From when until when something was broken by hand.
#[derive(Default)]
pub(crate) struct Broken(Mutex<Vec<(Instant, Option<Instant>)>>);

impl Broken {
    /// Returns whether an exchange between two moments may have failed.
    pub(crate) fn excuses(&self, from: Instant, to: Instant) -> bool {
        let is_in = |(begun, ended): &(Instant, Option<Instant>)| {
            *begun <= to && ended.is_none_or(|ended| ended + GRACE >= from)
        };
        lock(&self.0).iter().any(is_in)
    }
}

type Run = fn(&mut Disturber<'_>, &mut Running<'_>) -> Result<()>;

/// Every disturbance, and whether exchanges may fail by it.
const ALL: [(&str, bool, Run); 10] = [
    ("agent killed and started", false, killed),
    ("agent ended and started", false, ended),
    ("upgrade to another layout and back", false, upgraded),
    ("agent killed in an upgrade", false, killed_in_an_upgrade),
    ("started with other sizes", false, resized),
    ("pins removed", false, pins_removed),
    ("drained and back", true, drained),
    // The kernel stops the interface for a moment.
    ("clsact qdisc deleted", true, qdisc_deleted),
    ("another program before ours", true, program_before),
    ("settings emptied", true, settings_emptied),
];

/// How often each disturbance came, and the longest time until all was well again.
pub(crate) type Times = BTreeMap<&'static str, (u32, Duration)>;

/// Disturbs the agent of one run.
pub(crate) struct Disturber<'a> {
    world: &'a World,
    programs: &'a Programs,
    span: Span,
    random: Random,
    flows: u64,
    only: &'a str,
    next: Vec<usize>,
    pub(crate) times: Times,
}

impl<'a> Disturber<'a> {
    /// The size of the flow table at the start.
    pub(crate) const FLOWS: u64 = 65_536;

    /// The disturbances that have `only` in their names will come.
    pub(crate) fn new(
        world: &'a World,
        programs: &'a Programs,
        span: Span,
        seed: u64,
        only: &'a str,
    ) -> Self {
        Self {
            world,
            programs,
            span,
            random: Random::new(seed),
            flows: Self::FLOWS,
            only,
            next: Vec::new(),
            times: Times::new(),
        }
    }

    /// Disturbs once, and waits until all is well again.
    pub(crate) fn disturb(&mut self, running: &mut Running<'_>) -> Result<()> {
        if self.next.is_empty() {
            let wanted = |at: &usize| ALL[*at].0.contains(self.only);
            self.next = (0..ALL.len()).filter(wanted).collect();
        }
        let at = self.random.below(self.next.len() as u64) as usize;
        let (name, is_harmful, run) = ALL[self.next.swap_remove(at)];
        if self.programs.next_layout.is_none() && name.contains("upgrade") {
            return Ok(());
        }
        println!("  after {:.0?}: {name}", self.span.begin.elapsed());
        let begun = Instant::now();
        if is_harmful {
            lock(&self.world.broken.0).push((begun, None));
        }
        let done = run(self, running).and_then(|()| self.wait_until_well(running));
        if let Some((_, ended)) = lock(&self.world.broken.0).last_mut() {
            ended.get_or_insert_with(Instant::now);
        }
        done.with_context(|| format!("{name}: {}", running.log()))?;
        let (count, longest) = self.times.entry(name).or_default();
        *count += 1;
        *longest = (*longest).max(begun.elapsed().saturating_sub(WELL));
        Ok(())
    }

    /// Waits until no fault is told for a while and one generation of maps is left, or the end.
    fn wait_until_well(&self, running: &Running<'_>) -> Result<()> {
        let (begun, mut since) = (Instant::now(), Instant::now());
        while since.elapsed() < WELL && !self.span.is_over() {
            let (status, health) = running.health();
            let generations = fs::read_dir(running.pins()?).map_or(0, Iterator::count);
            if status != 200 || generations != 1 || !health.contains("\"faultCount\":0") {
                since = Instant::now();
            }
            let is_late = begun.elapsed() > REPAIRED;
            ensure!(!is_late, "not well again: {status} {health}");
            sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    fn pause(&mut self, most: u64) {
        sleep(Duration::from_millis(self.random.below(most)));
    }

    fn start(&self, running: &mut Running<'_>, binary: &Path) -> Result<()> {
        running.restart(binary, &config(self.flows))
    }

    /// Returns the two agents between which upgrades go.
    fn versions(&self) -> Result<[PathBuf; 2]> {
        let next = self.programs.next_layout.clone();
        let next = next.context("no other layout")?;
        Ok([next, self.programs.portolan.clone()])
    }
}

/// Returns the agent's configuration with a flow table of this many entries.
pub(crate) fn config(flows: u64) -> String {
    format!("portolan: {{maps: {{flows: {flows}}}}}\n")
}

/// Returns the folder with the pins of the agent's maps.
fn maps_of(running: &Running<'_>) -> Result<PathBuf> {
    let generation = fs::read_dir(running.pins()?)?.next();
    Ok(generation.context("no maps")??.path())
}

fn killed(node: &mut Disturber<'_>, running: &mut Running<'_>) -> Result<()> {
    running.signal(Signal::SIGKILL)?;
    node.pause(2_000);
    node.start(running, &node.programs.portolan)
}

fn ended(node: &mut Disturber<'_>, running: &mut Running<'_>) -> Result<()> {
    running.disturbed()?.end();
    node.pause(2_000);
    node.start(running, &node.programs.portolan)
}

fn upgraded(node: &mut Disturber<'_>, running: &mut Running<'_>) -> Result<()> {
    for binary in node.versions()? {
        node.start(running, &binary)?;
        node.wait_until_well(running)?;
    }
    Ok(())
}

fn killed_in_an_upgrade(node: &mut Disturber<'_>, running: &mut Running<'_>) -> Result<()> {
    for binary in node.versions()? {
        for _ in 0..=node.random.below(2) {
            node.start(running, &binary)?;
            node.pause(1_500);
            running.signal(Signal::SIGKILL)?;
        }
    }
    node.start(running, &node.programs.portolan)
}

fn resized(node: &mut Disturber<'_>, running: &mut Running<'_>) -> Result<()> {
    // Sizes between two powers of two make the same table.
    node.flows = 3 * Disturber::FLOWS - node.flows;
    node.start(running, &node.programs.portolan)
}

fn pins_removed(_: &mut Disturber<'_>, running: &mut Running<'_>) -> Result<()> {
    let count = |running: &Running<'_>| {
        let maps = maps_of(running).and_then(|folder| Ok(fs::read_dir(folder)?.count()));
        maps.unwrap_or_default()
    };
    let before = count(running);
    running.signal(Signal::SIGSTOP)?;
    let removed = fs::remove_dir_all(running.pins()?);
    running.signal(Signal::SIGCONT)?;
    removed.context("remove the pins")?;
    let begun = Instant::now();
    while count(running) < before {
        ensure!(begun.elapsed() < REPAIRED, "not all pins are back");
        sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Drains for a while: no connection begins meanwhile, and the next agent finds the old ones.
fn drained(node: &mut Disturber<'_>, running: &mut Running<'_>) -> Result<()> {
    running.disturbed()?.end();
    let mut command = Command::new(&node.programs.portolan);
    let command = command.args(["cleanup", "--drain", "--pin-dir"]);
    command.arg(running.pins()?).stdout(Stdio::null());
    let mut drain = node.world.topology.node.enter(|| command.spawn())??;
    sleep(Duration::from_secs(2));
    let ended = drain.try_wait()?;
    drain.kill()?;
    drain.wait()?;
    ensure!(ended.is_none(), "there are flows to drain: {ended:?}");
    node.start(running, &node.programs.portolan)
}

fn qdisc_deleted(node: &mut Disturber<'_>, _: &mut Running<'_>) -> Result<()> {
    for verb in ["add", "delete"] {
        let words = ["qdisc", verb, "dev", UPLINK, "clsact"];
        node.world.topology.node.feed("tc", &words, "")?;
        sleep(Duration::from_secs(1));
    }
    Ok(())
}

fn program_before(node: &mut Disturber<'_>, _: &mut Running<'_>) -> Result<()> {
    let egress = node.random.one_in(2);
    let host = &node.world.topology.node;
    let _before = Foreign::new(host, UPLINK, egress, ChainPosition::First, END)?;
    sleep(Duration::from_secs(3));
    Ok(())
}

fn settings_emptied(_: &mut Disturber<'_>, running: &mut Running<'_>) -> Result<()> {
    let map = maps_of(running)?.join(maps::SETTINGS);
    change_pinned(&map, size_of::<Settings>(), |_, value| {
        value.fill(0);
        true
    })?;
    // The agent looks once a second.
    sleep(Duration::from_secs(3));
    Ok(())
}
