// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Conversations between two pods of the node that need no translation: where the stack has no
//! filters, they bypass it; else only by a fresh record.

use std::net::SocketAddr;

use linux::{interfaces::PodLink, now};
use proxy_common::{
    Counter, Port, Protocol, Settings,
    flow::between_pods::{Direction, End, Record},
    maps::interface,
};
use rstest::rstest;

use super::node::{Node, OUTSIDE, PODS};
use crate::{
    packets::{Tcp, at, hops, tcp, udp, with_hops},
    service::{Addresses, IPV4, IPV6, v4},
    world::{NEXT, Outcome, REDIRECT},
};

/// The client's interface; the server's is [`PODS`].
const CLIENTS: u32 = OUTSIDE;
const SERVERS_MAC: [u8; 6] = [2, 0, 0, 0, 7, 9];

/// A node with two pods, and both ends of a connection straight to the backend.
fn prepare(a: Addresses) -> (Node, SocketAddr, SocketAddr) {
    let mut node = Node::new(a);
    let (client, server) = (node.client(), node.backend());
    node.world.set_pods(&links(client, server));
    (node, client, server)
}

/// The map entries of both pods.
fn links(client: SocketAddr, server: SocketAddr) -> [PodLink; 2] {
    [(client, CLIENTS, 8), (server, PODS, 9)].map(|(end, interface, last)| PodLink {
        address: end.ip(),
        interface,
        mtu: 1400,
        destination: [2, 0, 0, 0, 7, last],
        source: [2, 0, 0, 0, 7, 1],
    })
}

fn is_past(outcome: &Outcome) -> bool {
    let is_past = outcome.counter == Counter::PastTheStack;
    assert!(is_past || outcome.counter == Counter::Untouched);
    assert_eq!(outcome.verdict, if is_past { REDIRECT } else { NEXT });
    is_past
}

#[rstest]
fn without_filters_a_connection_bypasses_the_stack_from_its_syn_on(
    #[values(IPV4, IPV6)] a: Addresses,
) {
    let (node, client, server) = prepare(a);
    let there = |flags| node.ingress(&tcp(client, server, flags, b""), CLIENTS);
    let back = |flags| node.ingress(&tcp(server, client, flags, b""), PODS);
    let syn = there(Tcp::Syn);
    assert!(is_past(&syn));
    assert_eq!(hops(&syn.packet), 63);
    assert_eq!(syn.packet[..6], SERVERS_MAC);
    let answer = back(Tcp::SynAck);
    assert!(is_past(&answer) && is_past(&there(Tcp::Ack)) && is_past(&back(Tcp::Ack)));
    assert_eq!(answer.packet[..6], [2, 0, 0, 0, 7, 8]);
    assert!(is_past(&there(Tcp::Fin)) && is_past(&back(Tcp::Fin)));
    let datagram = udp(client, server, b"x");
    assert!(is_past(&node.ingress(&datagram, CLIENTS)));
}

/// Test runs cannot show the tag by which egress makes a record.
#[test]
fn with_filters_a_connection_bypasses_the_stack_only_by_a_fresh_record() {
    let (mut node, client, server) = prepare(IPV4);
    node.world
        .configure(|settings| settings.flags &= !Settings::UNFILTERED);
    let there = |node: &Node, flags| {
        let packet = tcp(client, server, flags, b"");
        is_past(&node.ingress(&packet, CLIENTS))
    };
    let back = |node: &Node| is_past(&node.ingress(&tcp(server, client, Tcp::Ack, b""), PODS));
    assert!(!there(&node, Tcp::Syn) && !there(&node, Tcp::Ack) && !back(&node));
    let end = |of: SocketAddr| End {
        address: v4(of.ip()).expect("IPv4"),
        port: Port::from_host(of.port()),
    };
    let protocol = Protocol::TCP;
    let one = Direction::new(&end(client), &end(server), protocol, 0);
    let other = Direction::new(&end(server), &end(client), protocol, 0);
    let record = |node: &Node, age: u64| {
        let then = now() - age;
        let record = Record::default()
            .after(one, true, false, then)
            .after(other, false, false, then)
            .after(one, false, true, then);
        node.world.set_between_pods(one.slot, record.0);
    };
    record(&node, 0);
    assert!(there(&node, Tcp::Ack) && back(&node));
    for flags in [Tcp::Syn, Tcp::Fin, Tcp::Rst] {
        assert!(!there(&node, flags), "the stack sees beginning and end");
    }
    record(&node, 3 << 32);
    assert!(!there(&node, Tcp::Ack) && !back(&node), "old");
    record(&node, 0);
    node.world.configure(|settings| {
        settings.flags &= !Settings::UNFILTERED;
        settings.flags |= Settings::TCP_BY_STACK;
    });
    assert!(!there(&node, Tcp::Ack));
}

#[rstest]
fn packets_to_a_pod_with_a_removed_interface_take_the_stack(#[values(IPV4, IPV6)] a: Addresses) {
    let (node, client, server) = prepare(a);
    let syn = tcp(client, server, Tcp::Syn, b"");
    assert!(is_past(&node.ingress(&syn, CLIENTS)));
    // No agent runs that would remove the pod from the map.
    node.network.ip("link del pods\n");
    assert!(!is_past(&node.ingress(&syn, CLIENTS)));
}

#[rstest]
fn packets_with_another_pods_address_take_the_stack(#[values(IPV4, IPV6)] a: Addresses) {
    const STRANGERS: u32 = 30;
    let (mut node, client, server) = prepare(a);
    node.network.ip(
        "link add strangers index 30 type veth peer name strangers-peer\nlink set strangers up\n",
    );
    node.world.set_interface(STRANGERS, interface::REDIRECTS);
    let segment = |flags| tcp(client, server, flags, b"");
    assert!(!is_past(&node.ingress(&segment(Tcp::Syn), STRANGERS)));
    assert!(is_past(&node.ingress(&segment(Tcp::Syn), CLIENTS)));
    assert!(!is_past(&node.ingress(&segment(Tcp::Ack), STRANGERS)));
    assert!(is_past(&node.ingress(&segment(Tcp::Ack), CLIENTS)));
}

#[rstest]
fn packets_to_no_backend_and_expired_or_too_large_ones_pass_unchanged(
    #[values(IPV4, IPV6)] a: Addresses,
) {
    let (node, client, server) = prepare(a);
    for packet in [
        tcp(client, at(server.ip(), 9999), Tcp::Syn, b""),
        udp(client, at(server.ip(), 9999), b"x"),
        tcp(client, at(node.addresses.outsider, 8080), Tcp::Syn, b""),
        with_hops(tcp(client, server, Tcp::Syn, b""), 1),
        tcp(client, server, Tcp::Syn, &[0; 1400]),
    ] {
        let outcome = node.ingress(&packet, CLIENTS);
        assert!(!is_past(&outcome));
        assert_eq!(outcome.packet, packet);
    }
}

#[rstest]
fn packets_from_an_interface_without_the_redirects_bit_take_the_stack(
    #[values(IPV4, IPV6)] a: Addresses,
) {
    let (mut node, client, server) = prepare(a);
    let syn = tcp(client, server, Tcp::Syn, b"");
    assert!(is_past(&node.ingress(&syn, CLIENTS)));
    node.world.set_interface(CLIENTS, interface::PODS);
    assert!(!is_past(&node.ingress(&syn, CLIENTS)));
}

/// The frame arrives as the bridge would deliver it, at a port that accepts it.
#[rstest]
fn a_bridged_frame_is_redirected_unchanged_between_ports_of_one_bridge(
    #[values(IPV4, IPV6)] a: Addresses,
) {
    let (mut node, client, server) = prepare(a);
    let mut frame = tcp(client, server, Tcp::Syn, b"");
    frame[..6].copy_from_slice(&SERVERS_MAC);
    let port = interface::REDIRECTS | interface::VETH_PORT;
    let mut is_handed = |own, there, bridge, frame: &[u8]| {
        node.world.set_port(CLIENTS, own, 7);
        node.world.set_port(PODS, there, bridge);
        let outcome = node.ingress(frame, CLIENTS);
        let past = is_past(&outcome);
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
    frame[5] ^= 1;
    assert!(!is_handed(port, port, 7, &frame));
}

/// The frame is for the bridge itself, which routes it.
#[rstest]
fn a_frame_addressed_to_the_bridge_is_routed(#[values(IPV4, IPV6)] a: Addresses) {
    let (mut node, client, server) = prepare(a);
    let mut frame = tcp(client, server, Tcp::Syn, b"");
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 7, 1]);
    let port = interface::REDIRECTS | interface::VETH_PORT;
    node.world.set_port(CLIENTS, port, 7);
    let handed = node.ingress(&frame, CLIENTS);
    assert!(is_past(&handed));
    assert_eq!(hops(&handed.packet), 63);
    assert_eq!(handed.packet[..6], SERVERS_MAC);
}

/// Otherwise only one half of a connection would bypass the stack.
#[rstest]
fn packets_to_an_interface_without_the_redirects_bit_take_the_stack(
    #[values(IPV4, IPV6)] a: Addresses,
) {
    let (mut node, client, server) = prepare(a);
    node.world.set_interface(PODS, interface::PODS);
    let syn = tcp(client, server, Tcp::Syn, b"");
    assert!(!is_past(&node.ingress(&syn, CLIENTS)));
}
