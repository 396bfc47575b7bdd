// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counters that must be 0 after ordinary traffic: of the hosts' network stacks, of portolan, and
//! the number of UDP flows that portolan evicted although they were in use.

use std::{
    collections::BTreeMap,
    fs,
    mem::offset_of,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use lab::{
    bpf::change_pinned,
    load::proxy::{metrics, samples},
    node::agent::Agent,
};
use nix::time::{ClockId, clock_gettime};
use proxy_common::{
    Protocol, V4, V6,
    flow::places::{FlowSlot, Tags, VALID},
    maps::{FLOW_SLOTS_V4, FLOW_SLOTS_V6, FLOW_TAGS_V4, FLOW_TAGS_V6},
};
use serde_json::Value;

use crate::{proxy::Running, world::World};

/// The outcomes of packets and socket calls that ordinary clients cause, by the names in portolan's
/// metric. No other outcome may be counted.
const ORDINARY: [&str; 14] = [
    "untouched",
    "untouched_flow",
    "untouched_past_the_stack",
    "forwarded_hit",
    "forwarded_new",
    "reply_passed",
    "reply_unmasqueraded",
    "reply_translated",
    "masqueraded",
    // A client may close its socket before a datagram arrives.
    "icmp_translated",
    // The other nodes are on the same segment as the clients outside.
    "icmp_redirect_dropped",
    "socket_translated",
    "socket_untouched",
    "socket_restored",
];

/// Counters of hosts' network stacks, by their names in nstat(8).
const SYN_RETRANS: &str = "TcpExtTCPSynRetrans";
const OUT_RSTS: &str = "TcpOutRsts";
/// The name of the counter of SYNs that hosts have repeated.
const SYNS: &str = "SYNs repeated";
/// The names of counters that increase when SYNs are repeated.
pub(crate) const OF_REPEATED: [&str; 2] = [SYNS, "forwarded_elsewhere"];
/// The name of the counter of TCP resets that hosts have sent. Hosts send some without any proxy:
/// when both sides close at the same time and their FINs cross.
pub(crate) const RESETS: &str = "resets sent by hosts";

/// The counters of connections that portolan has ended with their pod: by packets, and at sockets.
pub(crate) const ENDED: [&str; 2] = ["ended: flow", "ended: socket"];
/// The counter of resets that portolan sends. A client whose connection was ended gets one, at a
/// node port from the node's own stack.
pub(crate) const RESET: &str = "rejected_unknown_flow";

/// Counters by their names; portolan's ordinary outcomes are left out.
pub(crate) type Counters = BTreeMap<String, u64>;

/// Reads the counters of all hosts and of portolan.
pub(crate) fn read(world: &World, running: &Running<'_>) -> Result<Counters> {
    let mut counters = Counters::new();
    for namespace in world.namespaces() {
        let shown = namespace.feed("nstat", &["-asjz", SYN_RETRANS, OUT_RSTS], "")?;
        let shown: Value = serde_json::from_str(&shown)?;
        for (name, field) in [(SYNS, SYN_RETRANS), (RESETS, OUT_RSTS)] {
            let count = shown["kernel"][field].as_u64();
            *counters.entry(name.to_owned()).or_default() += count.context("read nstat")?;
        }
    }
    let Some(agent) = running.agent() else {
        return Ok(counters);
    };
    let metrics = metrics(agent.namespace())?;
    let ended = "portolan_connections_of_gone_endpoints_ended_total{kind=";
    for (kind, count) in samples(&metrics, ended)? {
        counters.insert(format!("ended: {kind}"), count);
    }
    let mut outcomes = samples(&metrics, "portolan_packets_total{outcome=")?;
    outcomes.retain(|(name, _)| !ORDINARY.contains(&name.as_str()));
    counters.extend(outcomes);
    Ok(counters)
}

/// Returns the increase of each counter from `before` to `after`.
pub(crate) fn difference(before: &Counters, after: &Counters) -> Counters {
    let since = |(name, count): (&String, &u64)| {
        let before = before.get(name).copied().unwrap_or_default();
        (name.clone(), count.saturating_sub(before))
    };
    after.iter().map(since).collect()
}

/// When `pass_an_hour` is called, idle connections have been silent for at least this long.
const SILENT: Duration = Duration::from_secs(15);

/// Changes portolan's flows of silent TCP connections as if an hour had passed.
pub(crate) fn pass_an_hour(agent: &Agent<'_>) -> Result<()> {
    // There is one folder for each generation of maps; two exist only while new maps take over.
    for folder in fs::read_dir(agent.pin_dir()).context("list the pins")? {
        let folder = folder?.path();
        age::<V4>(&folder, [FLOW_SLOTS_V4, FLOW_TAGS_V4])?;
        age::<V6>(&folder, [FLOW_SLOTS_V6, FLOW_TAGS_V6])?;
    }
    Ok(())
}

/// Makes a family's flows of silent TCP connections an hour older.
fn age<A>(folder: &Path, maps: [&str; 2]) -> Result<()> {
    const HOUR: u64 = 3_600_000_000_000;
    let protocol = offset_of!(FlowSlot<A>, key.protocol);
    let at = offset_of!(FlowSlot<A>, entry.last_seen);
    let now = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC)?);
    let silent = (now - SILENT).as_nanos() as u64;
    let [slots, tags] = maps.map(|map| folder.join(map));
    if !slots.exists() {
        return Ok(());
    }
    // A free slot may be given to a new flow before what was read of it is written back.
    let mut used = Vec::new();
    change_pinned(&tags, size_of::<Tags>(), |_, ways| {
        let tags = ways.as_chunks::<4>().0.iter();
        used.extend(tags.map(|tag| u32::from_ne_bytes(*tag) & VALID != 0));
        false
    })?;
    change_pinned(&slots, size_of::<FlowSlot<A>>(), |index, slot| {
        let seen: [u8; 8] = std::array::from_fn(|byte| slot[at + byte]);
        let last = u64::from_ne_bytes(seen);
        let is_tcp = slot[protocol] == Protocol::TCP.0;
        let has_to_age = used[index] && is_tcp && last < silent;
        if has_to_age {
            let before = last.saturating_sub(HOUR).max(1);
            slot[at..at + 8].copy_from_slice(&before.to_ne_bytes());
        }
        has_to_age
    })
}

/// A flow that was used within this many seconds must not be evicted.
const KEPT: u64 = 30;

/// Part of the names of the services whose endpoints are replaced.
const ROLLING: &str = "rolling";

/// Watches portolan's UDP flows. A flow may end only after being idle or with its backend.
pub(crate) struct Flows {
    before: BTreeMap<String, u64>,
    at: Instant,
    pub(crate) evicted: u32,
}

impl Flows {
    pub(crate) fn new() -> Self {
        Self {
            before: BTreeMap::new(),
            at: Instant::now(),
            evicted: 0,
        }
    }

    /// Lists the flows, and counts those that were used in the last 30 s and are gone now. Flows
    /// of services whose endpoints are replaced do not count.
    pub(crate) fn look(&mut self, agent: &Agent<'_>, binary: &Path) -> Result<()> {
        let at = Instant::now();
        let mut command = Command::new(binary);
        command.args(["flows", "--protocol=udp", "--output=json", "--pin-dir"]);
        let output = command.arg(agent.pin_dir()).output();
        let output = output.context("list flows")?;
        ensure!(output.status.success(), "portolan flows: {output:?}");
        let flows: Vec<Value> = serde_json::from_slice(&output.stdout)?;
        let mut now = BTreeMap::new();
        for flow in &flows {
            let word = |name: &str| flow[name].as_str().unwrap_or_default();
            if word("service").contains(ROLLING) {
                continue;
            }
            let [client, frontend, backend] = ["client", "frontend", "backend"].map(word);
            let name = format!("{client} -> {frontend}, {backend}");
            let idle = flow["idleSeconds"].as_u64();
            now.insert(name, idle.context("a flow's idle time")?);
        }
        let passed = (at - self.at).as_secs();
        for (flow, idle) in &self.before {
            if idle + passed + 1 < KEPT && !now.contains_key(flow) {
                println!(
                    "FAIL evicted: {flow}, seen {passed} s ago, when it had been used {idle} s before"
                );
                self.evicted += 1;
            }
        }
        (self.before, self.at) = (now, at);
        Ok(())
    }

    /// Time between two calls of [`Self::look`].
    pub(crate) const PERIOD: Duration = Duration::from_secs(10);
}
