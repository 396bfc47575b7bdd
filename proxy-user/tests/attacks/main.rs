// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests what clients still get while a node is attacked: the SYN flood of `lab::attacks`, for
//! seconds and on a small table. Needs root. The limits are generous, for a busy machine: without
//! the tested protection the numbers would be far worse. That closed connections leave their
//! masquerade ports and their entries to others stands in tests/fuzz/cases.

use std::{path::Path, sync::Mutex, time::Duration};

use lab::{
    attacks::{
        clients::{lost, new_ones, open},
        flood::{ANYONE, Flood, NEIGHBOURS},
        world::{CLUSTER_IP, NODE_PORT, World},
    },
    lock,
};
use rstest::rstest;

/// Configures a flow table so small that a flood of seconds fills it.
const SMALL_TABLE: &str = "portolan: {maps: {flows: 32768}}\n";
/// How many packets are a flood: those that fill the small flow table.
const ENOUGH: u64 = 25_000;
/// A client repeats its SYN after a second.
const BEFORE_THE_SECOND_SYN: Duration = Duration::from_millis(900);

/// From outside to a node port, or from a pod to a cluster IP; then another pod is the client.
#[rstest]
fn a_syn_flood_breaks_no_connection_and_new_ones_succeed(
    #[values(false, true)] without_agent: bool,
    #[values(false, true)] from_outside: bool,
) {
    // One runs at a time, because each flood uses the whole machine.
    static ONE: Mutex<()> = Mutex::new(());
    let _turn = lock(&ONE);
    let world = World::new().expect("a node");
    let binary = Path::new(env!("CARGO_BIN_EXE_portolan"));
    let started = world.start(binary, SMALL_TABLE, without_agent);
    let _agent = started.expect("it serves");
    let (pods, outside) = (&world.topology.pods, &world.topology.outside);
    let (attacker, client, to, sources) = match from_outside {
        true => (outside, outside, NODE_PORT, ANYONE),
        false => (&pods[1], &pods[0], CLUSTER_IP, NEIGHBOURS),
    };
    let mut open = open(client, to, 200).expect("connections");
    let flood = Flood {
        attacker,
        sources,
        to,
    };
    let during = flood.during(|| new_ones(client, to, 200));
    let (sent, during) = during.expect("a flood");
    let after = new_ones(client, to, 100).expect("clients");
    println!("{sent} packets, new ones meanwhile: {during:?}");
    assert!(sent > ENOUGH, "a flood: {sent}");
    assert_eq!(lost(&mut open), 0);
    assert!(during.len() >= 194, "of 200 new ones: {}", during.len());
    // The endpoint may have a half-open connection from the flood with a client's masquerade port;
    // then the client must repeat its SYN. It keeps about 1000 of them, for 28 000 ports.
    let slow = during[during.len() * 85 / 100];
    assert!(slow < BEFORE_THE_SECOND_SYN, "{slow:?}");
    assert_eq!(after.len(), 100, "afterwards");
}
