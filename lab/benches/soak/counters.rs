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
    load::proxy::{metrics, samples},
    node::agent::Agent,
    pinned,
};
use nix::time::{ClockId, clock_gettime};
use proxy_common::{
    FlowEntry, FlowKey, Protocol, V4, V6,
    maps::{FLOWS_V4, FLOWS_V6},
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

/// The counters of connections that portolan has ended because their pod is gone: by packets, and
/// at sockets.
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
    const HOUR: u64 = 3_600_000_000_000;
    let now = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC)?);
    let silent = (now - SILENT).as_nanos() as u64;
    let pass = |[protocol, at]: [usize; 2], key: &[u8], value: &mut [u8]| {
        let is_tcp = key[protocol] == Protocol::TCP.0;
        let Some(seen) = value.get_mut(at..at + 8) else {
            return false;
        };
        let last = u64::from_ne_bytes(std::array::from_fn(|byte| seen[byte]));
        let has_to_age = is_tcp && last < silent;
        if has_to_age {
            seen.copy_from_slice(&last.saturating_sub(HOUR).max(1).to_ne_bytes());
        }
        has_to_age
    };
    // There is one folder for each generation of maps; two exist only while new maps take over.
    for folder in fs::read_dir(agent.pin_dir()).context("list the pins")? {
        let folder = folder?.path();
        for (name, [sizes, fields]) in [(FLOWS_V4, layout::<V4>()), (FLOWS_V6, layout::<V6>())] {
            let map = folder.join(name);
            if map.exists() {
                pinned::change(&map, sizes, |key, value| pass(fields, key, value))?;
            }
        }
    }
    Ok(())
}

/// Returns the sizes of key and value in a map of flows, and where a flow's protocol and time are.
const fn layout<A>() -> [[usize; 2]; 2] {
    let protocol = offset_of!(FlowKey<A>, protocol);
    let sizes = [size_of::<FlowKey<A>>(), size_of::<FlowEntry<A>>()];
    [sizes, [protocol, offset_of!(FlowEntry<A>, last_seen)]]
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
