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
    load::proxy::samples,
    node::{agent::Agent, netns::NetNs},
    pinned,
};
use nix::time::{ClockId, clock_gettime};
use proxy_common::{FlowEntry, FlowKey, Protocol, V4, maps::FLOWS_V4};
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
        for (name, file, field) in [
            (SYNS, "netstat", "TCPSynRetrans"),
            (RESETS, "snmp", "OutRsts"),
        ] {
            *counters.entry(name.to_owned()).or_default() += of_host(namespace, file, field)?;
        }
    }
    let metrics = running.metrics()?.unwrap_or_default();
    let ended = "portolan_connections_of_gone_endpoints_ended_total{kind=";
    for (kind, count) in samples(&metrics, ended)? {
        let name = format!("ended: {kind}");
        counters.extend(ENDED.contains(&name.as_str()).then_some((name, count)));
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

/// Reads a counter of a host's network stack. In its /proc file, each line of names is followed by
/// a line of numbers.
fn of_host(namespace: &NetNs, file: &str, field: &str) -> Result<u64> {
    let path = format!("/proc/thread-self/net/{file}");
    let text = namespace
        .enter(|| fs::read_to_string(&path))?
        .with_context(|| format!("read {path}"))?;
    find(&text, field).with_context(|| format!("{path} has no {field}"))
}

fn find(text: &str, field: &str) -> Option<u64> {
    let mut pairs = text.lines().zip(text.lines().skip(1));
    pairs.find_map(|(names, numbers)| {
        let position = names.split(' ').position(|name| name == field)?;
        numbers.split(' ').nth(position)?.parse().ok()
    })
}

/// When `pass_an_hour` is called, idle connections have been silent for at least this long.
const SILENT: Duration = Duration::from_secs(15);

/// Changes portolan's flows of silent TCP connections as if an hour had passed.
pub(crate) fn pass_an_hour(agent: &Agent<'_>) -> Result<()> {
    const HOUR: u64 = 3_600_000_000_000;
    let now = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC)?);
    let silent = (now - SILENT).as_nanos() as u64;
    let sizes = [size_of::<FlowKey<V4>>(), size_of::<FlowEntry<V4>>()];
    let at = offset_of!(FlowEntry<V4>, last_seen);
    let mut pass = |key: &[u8], value: &mut [u8]| {
        let is_tcp = key[offset_of!(FlowKey<V4>, protocol)] == Protocol::TCP.0;
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
        let map = folder?.path().join(FLOWS_V4);
        if map.exists() {
            pinned::change(&map, sizes, &mut pass)?;
        }
    }
    Ok(())
}

/// A flow that was used within this many seconds must not be evicted.
const KEPT: u64 = 30;

/// Part of the names of the services whose endpoints are replaced.
const ROLLING: &str = "rolling";

/// Watches portolan's UDP flows. A flow may end only after being idle or with its backend.
pub(crate) struct Flows {
    before: BTreeMap<String, u64>,
    at: Instant,
    pub(crate) evicted: Vec<String>,
}

impl Flows {
    pub(crate) fn new() -> Self {
        Self {
            before: BTreeMap::new(),
            at: Instant::now(),
            evicted: Vec::new(),
        }
    }

    /// Lists the flows, and records those that were used in the last 30 s and are gone now. Flows
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
                self.evicted.push(flow.clone());
            }
        }
        (self.before, self.at) = (now, at);
        Ok(())
    }

    /// Time between two calls of [`Self::look`].
    pub(crate) const PERIOD: Duration = Duration::from_secs(10);
}
