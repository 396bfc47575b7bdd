// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Conversations between two pods of the node that need no translation: they bypass the stack only
//! by a fresh record. Test runs cannot show the tag by which egress makes it, so these tests write
//! it. When it is fresh is decided in `proxy_common::flow`.

use datapath::maps::family::Family;
use linux::now;
use proxy_common::{
    Counter, Port, Protocol, V4, V6,
    flow::between_pods::{Direction, End, Record},
    maps::{self, interface},
};
use rstest::rstest;

use super::{MTU, link};
use crate::{
    node::{INSIDE, Node, OUTSIDE},
    packets::{Tcp, hops, tcp, udp, with_hops},
    service::{Addresses, IPV4, IPV6},
    world::{NEXT, Outcome, REDIRECT},
};

/// The client's interface; the server's is [`INSIDE`].
const CLIENTS: u32 = OUTSIDE;
const SERVERS_MAC: [u8; 6] = [2, 0, 0, 0, 7, 9];

/// A node that knows the links of two pods, the client's and that of the backend, and has a fresh
/// record of their connection.
fn prepare(a: Addresses) -> Node {
    let mut node = super::node(a);
    let links = [link(a.pod, CLIENTS, 8), link(a.backend, INSIDE, 9)];
    node.world.set_pods(&links);
    record(&node, 0);
    node
}

/// Records that packets of both directions have left the stack so many nanoseconds ago.
fn record(node: &Node, age: u64) {
    match node.addresses.is_v6() {
        true => record_in::<V6>(node, age),
        false => record_in::<V4>(node, age),
    }
}

fn record_in<A: Family>(node: &Node, age: u64) {
    let [client, server] = [node.client(), node.backend()].map(|of| End {
        address: A::of_ip(of.ip()).expect("of the family"),
        port: Port::from_host(of.port()),
    });
    let secret = node.world.flow_table().secret();
    let [there, back] = [(&client, &server), (&server, &client)]
        .map(|(from, to)| Direction::new(from, to, Protocol::TCP, secret));
    let then = now() - age;
    let begun = Record::default().after(there, true, false, then);
    let record = begun.after(back, false, true, then);
    node.world.store(maps::BETWEEN_PODS, there.slot, record.0);
}

/// A segment of the client straight to the backend.
fn there(node: &Node, flags: Tcp) -> Vec<u8> {
    tcp(node.client(), node.backend(), flags, b"")
}

/// Whether a frame from the client's interface bypasses the stack.
fn is_past(node: &Node, frame: &[u8]) -> bool {
    judged(&node.ingress(frame, CLIENTS))
}

/// Whether a frame bypasses the stack; one that does not must be untouched.
fn judged(outcome: &Outcome) -> bool {
    let is_past = outcome.counter == Counter::PastTheStack;
    assert!(is_past || outcome.counter == Counter::Untouched);
    assert_eq!(outcome.verdict, if is_past { REDIRECT } else { NEXT });
    is_past
}

/// Expects that a frame bypasses the stack by the node's routes, to this link-layer address.
fn expect_routed(outcome: &Outcome, mac: [u8; 6]) {
    assert!(judged(outcome));
    let frame = &outcome.packet;
    assert_eq!((hops(frame), &frame[..6]), (63, &mac[..]));
}

#[rstest]
fn a_connection_bypasses_the_stack_only_by_a_fresh_record(#[values(*IPV4, *IPV6)] a: Addresses) {
    let node = prepare(a);
    let (client, server) = (node.client(), node.backend());
    let back = || node.ingress(&tcp(server, client, Tcp::Ack, b""), INSIDE);
    expect_routed(&node.ingress(&there(&node, Tcp::Ack), CLIENTS), SERVERS_MAC);
    expect_routed(&back(), [2, 0, 0, 0, 7, 8]);
    for flags in [Tcp::Syn, Tcp::Fin, Tcp::Rst] {
        let is_past = is_past(&node, &there(&node, flags));
        assert!(!is_past, "the stack sees beginning and end: {flags:?}");
    }
    assert!(!is_past(&node, &udp(client, server, b"x")), "another one");
    record(&node, 3 << 32);
    assert!(!is_past(&node, &there(&node, Tcp::Ack)) && !judged(&back()));
}

/// Changes a node; returns the interface at which the packet comes in then.
type Change = fn(&Node) -> u32;

#[rstest]
// No agent runs that would remove the pod from the map.
#[case::to_a_removed_interface(|node: &Node| {
    node.ip("link del inside\n");
    CLIENTS
})]
#[case::with_another_pods_address(|node: &Node| {
    node.ip("link add others index 30 address 02:00:00:00:00:02 type veth peer name far\n");
    node.ip("link set others up\n");
    node.world.set_interface(30, interface::REDIRECTS);
    30
})]
#[case::from_an_interface_that_may_not(|node: &Node| {
    node.world.set_interface(CLIENTS, interface::PODS);
    CLIENTS
})]
// Otherwise only one half of a connection would bypass the stack.
#[case::to_an_interface_that_may_not(|node: &Node| {
    node.world.set_interface(INSIDE, interface::PODS);
    CLIENTS
})]
fn packets_elsewhere_take_the_stack(#[values(*IPV4, *IPV6)] a: Addresses, #[case] change: Change) {
    let node = prepare(a);
    let segment = there(&node, Tcp::Ack);
    assert!(is_past(&node, &segment));
    let interface = change(&node);
    assert!(!judged(&node.ingress(&segment, interface)));
}

#[rstest]
fn expired_and_too_large_packets_pass_unchanged(#[values(*IPV4, *IPV6)] a: Addresses) {
    let node = prepare(a);
    for packet in [
        with_hops(&there(&node, Tcp::Ack), 1),
        tcp(node.client(), node.backend(), Tcp::Ack, &[0; MTU as usize]),
    ] {
        let outcome = node.ingress(&packet, CLIENTS);
        assert!(!judged(&outcome));
        assert_eq!(outcome.packet, packet);
    }
}

/// The frame arrives as the bridge would deliver it, at a port that accepts it.
#[rstest]
fn a_bridged_frame_is_redirected_unchanged_within_its_bridge(#[values(*IPV4, *IPV6)] a: Addresses) {
    let node = prepare(a);
    let mut frame = there(&node, Tcp::Ack);
    frame[..6].copy_from_slice(&SERVERS_MAC);
    let port = interface::REDIRECTS | interface::VETH_PORT;
    let is_handed = |own, there, bridge, frame: &[u8]| {
        node.world.set_port(CLIENTS, own, 7);
        node.world.set_port(INSIDE, there, bridge);
        let outcome = node.ingress(frame, CLIENTS);
        let past = judged(&outcome);
        assert!(!past || outcome.packet == frame);
        past
    };
    assert!(is_handed(port, port, 7, &frame));
    let isolated = port | interface::ISOLATED;
    assert!(!is_handed(isolated, port, 7, &frame));
    assert!(!is_handed(port, isolated, 7, &frame));
    // The server is at a port of another bridge.
    assert!(!is_handed(port, port, 8, &frame));
    // The bridge would deliver the frame to another port.
    frame[5] ^= 2;
    assert!(!is_handed(port, port, 7, &frame));
    // The frame is for the bridge itself, which routes it.
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 7, 1]);
    let routed = node.ingress(&frame, CLIENTS);
    expect_routed(&routed, SERVERS_MAC);
}
