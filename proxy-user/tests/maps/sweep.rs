// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests that sweeps remove idle flows with both entries, and no others.

use std::collections::HashSet;

use linux::now;
use proxy_common::{FlowEntry, FlowKey, FlowState, Protocol, V4, flow::IdleTimes};

use crate::{
    flow_table::entries,
    support::{ENTRY, PinDir, and_reply, enter, key_of},
};

const SECOND: u64 = 1_000_000_000;

type Entry = (FlowKey<V4>, FlowEntry<V4>);

/// Returns the original and the reply entry of a flow that has been idle for `idle` seconds.
fn flow(n: u32, protocol: Protocol, state: FlowState, idle: u64) -> [Entry; 2] {
    let entry = FlowEntry {
        // The machine may have started less than an hour ago.
        last_seen: now().saturating_sub(idle * SECOND),
        state,
        ..ENTRY
    };
    and_reply(key_of(n, protocol), entry)
}

#[test]
fn a_sweep_removes_idle_flows_and_orphans_but_no_live_flow() {
    let pins = PinDir::new();
    let mut datapath = pins.open();
    // The times are shorter than the uptime of any machine that runs this test.
    datapath.set_idle_times(IdleTimes {
        udp: 10,
        udp_stream: 15,
        ..IdleTimes::DEFAULT
    });
    let table = pins.flows();
    let mut all = Vec::new();
    for n in 0..450 {
        all.extend(flow(n, Protocol::TCP, FlowState::ESTABLISHED, 3_600));
        all.extend(flow(n + 1000, Protocol::UDP, FlowState::ESTABLISHED, 20));
        all.extend(flow(n + 2000, Protocol::UDP, FlowState::NEW, 2));
    }
    // These are reply entries without an original.
    for n in 0..100 {
        all.push(flow(n + 3000, Protocol::UDP, FlowState::ESTABLISHED, 20)[1]);
    }
    assert!(all.iter().all(|(key, entry)| enter(&table, key, entry)));
    // The walk passes through the table twice, so that the counts are those of a complete walk.
    let sweeps = [(); 4].map(|()| datapath.sweep().expect("sweeps").v4);
    let removed: u32 = sweeps.iter().map(|sweep| sweep.removed).sum();
    assert_eq!(removed, 550, "450 idle flows and 100 orphans");
    assert_eq!((sweeps[3].flows, sweeps[3].entries), (900, 1800));
    let left = entries(&table).expect("readable").into_iter();
    let left: HashSet<FlowKey<V4>> = left.map(|(key, _)| key).collect();
    let alive = (0..450).flat_map(|n| {
        let long = flow(n, Protocol::TCP, FlowState::ESTABLISHED, 0);
        let fresh = flow(n + 2000, Protocol::UDP, FlowState::NEW, 0);
        [long, fresh].into_iter().flatten().map(|(key, _)| key)
    });
    assert_eq!(left, alive.collect());
}
