// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan explain`: its answer agrees with what happens to real packets, and it changes nothing.

mod host;
mod input;
mod names;
mod next_hops;
mod others;
mod reasons;
mod verdicts;

use std::{
    process::Output,
    thread,
    time::{Duration, Instant},
};

use datapath::read::{Flow, Reader};
use lab::node::{netns::NetNs, pod::plug};
use linux::Plain;
use proxy_common::{AffinityEntry, AffinityKey, Counter, V4, maps};
use serde_json::Value;

use crate::{
    repair::table,
    world::{PATIENCE, World},
};

/// The address of the client pod.
const CLIENT: &str = "10.40.1.10";
/// The address of a client outside the node that is no pod.
pub(crate) const OUTSIDE: &str = "198.51.100.7";

pub(crate) fn run(world: &World, flags: &[&str]) -> Output {
    let mut command = world.asking(&[&["explain"], flags].concat());
    world.output(command.env_remove("KUBECONFIG"))
}

/// One answer of `portolan explain`.
pub(crate) struct Said {
    pub(crate) status: i32,
    pub(crate) report: Value,
}

/// Runs `portolan explain` with a dry run.
pub(crate) fn explain(world: &World, from: &str, to: &str, flags: &[&str]) -> Said {
    let words = ["--from", from, "--to", to, "--output", "json"];
    let output = run(world, &[&words, flags].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    let report = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {output:?} {said}"));
    Said {
        status: output.status.code().expect("a status"),
        report,
    }
}

/// Runs `portolan explain` without a dry run.
fn ask(world: &World, from: &str, to: &str, flags: &[&str]) -> Said {
    explain(world, from, to, &[&["--no-dry-run"], flags].concat())
}

impl Said {
    fn is_answered(&self) -> bool {
        let (verdict, answered) = match self.status {
            0 => ("answered", Value::Bool(true)),
            1 => ("differs", self.report["answered"].clone()),
            3 => ("notAnswered", Value::Bool(false)),
            _ => ("notLookedAt", Value::Null),
        };
        let said = (&self.report["verdict"], &self.report["answered"]);
        assert_eq!(said, (&verdict.into(), &answered), "{:#}", self.report);
        self.status != 3
    }
    pub(crate) fn outcome(&self) -> &str {
        self.report["outcome"].as_str().expect("an outcome")
    }
    /// The endpoints that can answer.
    #[track_caller]
    fn endpoints(&self) -> Vec<&str> {
        let all = self.report["endpoints"].as_array().expect("endpoints");
        let able = all.iter().filter(|one| one["canAnswer"] == true);
        able.map(|one| one["address"].as_str().expect("an address"))
            .collect()
    }
    /// The outcomes of the dry run.
    pub(crate) fn steps(&self) -> Vec<&str> {
        let steps = self.report["dryRun"]["steps"].as_array();
        let steps = steps.unwrap_or_else(|| panic!("a dry run: {:#}", self.report));
        let outcomes = steps.iter().map(|step| step["outcome"].as_str());
        outcomes.map(|one| one.expect("an outcome")).collect()
    }
    /// Expects a finding of this level with these words and a page; unless it is a note, also a
    /// remedy.
    #[track_caller]
    pub(crate) fn finds(&self, level: &str, words: &str) {
        let findings = self.report["findings"].as_array().expect("findings");
        let text = |finding: &Value, key: &str| finding[key].as_str().map(ToOwned::to_owned);
        let is_it = |finding: &&Value| {
            let said =
                [text(finding, "about"), text(finding, "found")].map(Option::unwrap_or_default);
            finding["level"] == level && said.join(": ").contains(words)
        };
        let found = findings.iter().find(is_it);
        let found = found.unwrap_or_else(|| panic!("{level}, {words}: {:#}", self.report));
        assert!(
            found["page"]
                .as_str()
                .is_some_and(|page| page.starts_with("docs/"))
        );
        assert_eq!(found["remedy"].is_string(), level != "note", "{found:#}");
    }
    /// Expects that all findings are notes.
    #[track_caller]
    fn is_clean(&self) {
        assert_eq!(self.status, 0, "{:#}", self.report);
    }
}

/// The state of the node that `explain` must not change.
#[derive(PartialEq, Debug)]
struct State {
    flows: Vec<Flow>,
    affinity: Vec<(AffinityKey<V4>, AffinityEntry)>,
    sockets: usize,
    /// All counters but that of packets to no service, which neighbour discovery raises.
    counters: Vec<u64>,
    /// The number of entries pushed to, and removed from, each ring.
    rings: Vec<(u32, [u64; 2])>,
    ports: Vec<(u32, u64)>,
    direct: Vec<(u32, u32)>,
    pins: Vec<String>,
}

impl State {
    /// The state once the earlier connections have ended; the machine may be busy.
    fn at_rest(world: &World) -> Self {
        let deadline = Instant::now() + PATIENCE;
        let mut before = Self::of(world);
        loop {
            thread::sleep(Duration::from_millis(50));
            let now = Self::of(world);
            let is_open = |flow: &Flow| flow.state.starts_with("closing");
            if now == before && !now.flows.iter().any(is_open) {
                return now;
            }
            assert!(Instant::now() < deadline, "{now:?}");
            before = now;
        }
    }

    fn of(world: &World) -> Self {
        let reader = Reader::open(world.pins()).expect("pins");
        let mut flows = reader.flows().expect("flows");
        flows.iter_mut().for_each(|flow| flow.idle_seconds = 0);
        let mut counters = reader.counters().expect("counters");
        counters[Counter::Untouched as usize] = 0;
        let mut affinity = entries(world, maps::AFFINITY_V4);
        affinity.sort_by_key(|(key, _): &(AffinityKey<V4>, _)| (key.service, key.client));
        let pins = world.pins().parent().expect("a folder");
        let pins = pins.read_dir().expect("a BPF file system").flatten();
        let own = world.pins().file_name().expect("a name").to_string_lossy();
        let mut pins: Vec<_> = pins
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| name.starts_with(&*own))
            .collect();
        pins.sort();
        Self {
            flows,
            affinity,
            sockets: reader.sockets().expect("sockets").len(),
            counters,
            rings: entries(world, maps::RING_ENDS),
            ports: entries(world, maps::PORTS),
            direct: entries(world, maps::DIRECT),
            pins,
        }
    }
}

fn entries<K: Plain, V: Plain>(world: &World, map: &str) -> Vec<(K, V)> {
    table(world, map).entries().expect("entries")
}

/// Runs `explain` and expects that it changes nothing.
fn explain_quietly(world: &World, from: &str, to: &str, flags: &[&str]) -> Said {
    let before = State::at_rest(world);
    let said = explain(world, from, to, flags);
    assert_eq!(before, State::of(world), "{:#}", said.report);
    said
}

/// Connects a client that is no pod to the node.
pub(crate) fn outside(world: &World) -> NetNs {
    let outside = NetNs::new("outside").expect("run as root");
    plug(world.node(), &outside, &[OUTSIDE]).expect("joined");
    outside
}

/// Gives the server pod another address, at which it answers too.
pub(crate) fn serve_also(world: &World, address: &str) {
    let add = format!("address add {address}/32 dev eth0\n");
    world.server().ip(&add).expect("an address");
    let interface = world.server_interface();
    world.ip(&format!("route add {address}/32 dev {interface}"));
    world.serve((address, 8080));
}
