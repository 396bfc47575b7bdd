// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests that sweeps remove idle flows with both entries, and no others.

use std::collections::HashSet;

use datapath::{Datapath, Occupancy};
use proxy_common::{
    BackendId, FlowEntry, FlowKey, FlowKind, FlowState, Port, Protocol, ServiceId, V4,
    flow::{ClientInterface, IdleTimes, Offload, SPARE},
    maps,
};

use crate::support::{PinDir, v4};

const SECOND: u64 = 1_000_000_000;

fn now() -> u64 {
    let clock = nix::time::ClockId::CLOCK_MONOTONIC_COARSE;
    let time = nix::time::clock_gettime(clock).expect("the clock");
    time.tv_sec() as u64 * SECOND + time.tv_nsec() as u64
}

type Entry = (FlowKey<V4>, FlowEntry<V4>);

/// Returns the original and the reply entry of a flow that has been idle for `idle` seconds.
fn flow(n: u32, protocol: Protocol, state: FlowState, idle: u64) -> [Entry; 2] {
    let client = v4(10, 9, (n >> 8) as u8, n as u8);
    let (frontend, backend) = (v4(10, 96, 0, 1), v4(10, 1, 0, 1));
    let (client_port, port) = (Port::from_host(40_000), Port::from_host(80));
    let key = FlowKey::new(client, client_port, frontend, port, protocol);
    let entry = FlowEntry {
        check: 0,
        kind: FlowKind::ORIGINAL,
        flags: 0,
        port: Port::from_host(8080),
        address: backend,
        masquerade: v4(0, 0, 0, 0),
        client_port,
        masquerade_port: Port::ANY,
        service: ServiceId(1),
        backend: BackendId(1),
        generation: 0,
        // The machine may have started less than an hour ago.
        last_seen: now().saturating_sub(idle * SECOND),
        interface: ClientInterface::SHARED,
        state,
        sequence: 0,
        reuse: 0,
        slot: 0,
        offload: Offload::NONE,
        _pad: SPARE,
    };
    let mut reply_key = key;
    entry.reply_key_into(&key, &mut reply_key);
    let reply = FlowEntry {
        kind: FlowKind::REPLY,
        port,
        address: frontend,
        state: FlowState::NEW,
        ..entry
    };
    [
        (key, entry.sealed(&key)),
        (reply_key, reply.sealed(&reply_key)),
    ]
}

/// Sweeps until the walk has passed through the table twice, so that the counts are those of a
/// complete walk.
fn sweep(datapath: &mut Datapath) -> (Occupancy, u32) {
    let mut removed = 0;
    let mut last = Occupancy::default();
    for _ in 0..4 {
        last = datapath.sweep().expect("sweeps");
        removed += last.v4.removed;
    }
    (last, removed)
}

#[test]
fn idle_flows_go_with_their_replies_and_live_ones_and_their_old_replies_stay() {
    let pins = PinDir::new();
    let mut datapath = pins.open();
    // The times are shorter than the uptime of any machine that runs this test.
    datapath.set_idle_times(IdleTimes {
        udp: 10,
        udp_stream: 15,
        ..IdleTimes::DEFAULT
    });
    let table = pins.table::<FlowKey<V4>, FlowEntry<V4>>(maps::FLOWS_V4);
    let mut keys = Vec::new();
    let mut values = Vec::new();
    let mut add = |entries: &[Entry]| {
        for (key, entry) in entries {
            keys.push(*key);
            values.push(*entry);
        }
    };
    for n in 0..450 {
        add(&flow(n, Protocol::TCP, FlowState::ESTABLISHED, 3_600));
        add(&flow(n + 1000, Protocol::UDP, FlowState::ESTABLISHED, 20));
        add(&flow(n + 2000, Protocol::UDP, FlowState::NEW, 2));
    }
    // These are reply entries without an original.
    for n in 0..100 {
        add(&flow(n + 3000, Protocol::UDP, FlowState::ESTABLISHED, 20)[1..]);
    }
    assert!(table.update_all(&keys, &values).is_empty());
    let (occupancy, removed) = sweep(&mut datapath);
    assert_eq!(removed, 550, "450 idle flows and 100 orphans");
    assert_eq!((occupancy.v4.flows, occupancy.v4.entries), (900, 1800));
    let left: HashSet<FlowKey<V4>> = table
        .entries()
        .expect("readable")
        .into_iter()
        .map(|(key, _)| key)
        .collect();
    let alive = (0..450).flat_map(|n| {
        let long = flow(n, Protocol::TCP, FlowState::ESTABLISHED, 0);
        let fresh = flow(n + 2000, Protocol::UDP, FlowState::NEW, 0);
        [long, fresh].into_iter().flatten().map(|(key, _)| key)
    });
    assert_eq!(left, alive.collect());
}
