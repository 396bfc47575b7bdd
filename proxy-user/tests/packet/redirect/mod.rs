// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `forwarding: auto`: packets of open connections that leave at ingress, and those that are passed
//! to the stack. That flows with an end at the node must take the stack stands in
//! tests/fuzz/cases/past.txt. From which other addresses the stack forwards nothing stands in
//! `proxy-common/src/addr.rs`.

mod between_pods;
mod offload;

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use linux::interfaces::PodLink;
use proxy_common::{Counter, FlowKind, maps::interface};
use rstest::rstest;

use crate::{
    node::{INSIDE, Node},
    packets::{Tcp, at, hops, tcp, with_hops},
    service::{Addresses, IPV4, IPV6},
    world::{NEXT, REDIRECT},
};

fn node(a: Addresses) -> Node {
    Node::new(a, |options| options.redirects = true, interface::REDIRECTS)
}

/// A pod's link as the agent stores it; `last` ends the pod's link-layer address.
fn link(address: IpAddr, interface: u32, last: u8) -> PodLink {
    PodLink {
        address,
        interface,
        mtu: MTU,
        destination: [2, 0, 0, 0, 7, last],
        source: [2, 0, 0, 0, 7, 1],
    }
}

/// The MTU of the node's interfaces.
const MTU: u32 = 1400;

/// A segment of the client to the service; `length` is that of the packet.
fn segment(node: &Node, length: u32) -> Vec<u8> {
    let payload = vec![0; (length - headers(node)) as usize];
    tcp(node.client(), node.service(), Tcp::Ack, &payload)
}

/// The length of the IP and TCP headers.
fn headers(node: &Node) -> u32 {
    if node.addresses.is_v6() { 60 } else { 40 }
}

/// Sends a segment of a connection, a reply also through egress; returns ingress's verdict.
fn send(node: &Node, client: SocketAddr, there: bool, flags: Tcp) -> u32 {
    let (from, to) = match there {
        true => (client, node.service()),
        false => (node.backend(), client),
    };
    let inside = node.ingress(&tcp(from, to, flags, b""), INSIDE);
    if !there && inside.verdict == NEXT {
        let out = node.egress(&inside.packet, 0, INSIDE);
        assert_eq!(out.counter, Counter::ReplyTranslated);
    }
    inside.verdict
}

/// Begins a client's connection to the service, and acknowledges the answer.
fn establish(node: &Node, client: SocketAddr) {
    for (there, flags) in [(true, Tcp::Syn), (false, Tcp::SynAck), (true, Tcp::Ack)] {
        assert_eq!(send(node, client, there, flags), NEXT, "no record yet");
    }
}

/// Does the same, and records that the stack has let packets of both directions pass.
fn open(node: &Node, client: SocketAddr) {
    establish(node, client);
    for kind in [FlowKind::ORIGINAL, FlowKind::REPLY] {
        node.record(kind, INSIDE, 0);
    }
}

/// Whatever becomes of it then, the packet is translated. To a known pod no neighbour is looked up;
/// that the frame gets the addresses of the pod's link stands in tests/fuzz.
#[rstest]
fn packets_that_need_the_stack_are_not_redirected(#[values(*IPV4, *IPV6)] a: Addresses) {
    type Prepare = fn(&mut Node);
    let as_it_is: Prepare = |_| {};
    let unresolved: Prepare = |node| node.ip("neigh del BACKEND dev inside\n");
    let without_link_layer: Prepare = |node| {
        node.ip("neigh del BACKEND dev inside\n");
        let bits = interface::REDIRECTS | interface::NO_LINK_LAYER;
        node.world.set_interface(INSIDE, bits);
    };
    let without_route: Prepare = |node| node.ip("route del BACKEND dev inside\n");
    let known_pod: Prepare = |node| {
        node.ip("neigh del BACKEND dev inside\nroute del BACKEND dev inside\n");
        let link = link(node.addresses.backend, INSIDE, 9);
        node.world.set_pods(&[link]);
    };
    for (what, prepare, length, segments, hop_limit, verdict) in [
        ("it fits", as_it_is, MTU, 0, 64, REDIRECT),
        ("its segments fit", as_it_is, 3000, MTU, 64, REDIRECT),
        // The kernel resolves the next hop's address and keeps the packet until then.
        ("an unresolved next hop", unresolved, 100, 0, 64, REDIRECT),
        ("its hop limit ends", as_it_is, 100, 0, 1, NEXT),
        ("too large", as_it_is, MTU + 1, 0, 64, NEXT),
        ("segments too large", as_it_is, 3000, MTU + 1, 64, NEXT),
        ("no link layer", without_link_layer, 100, 0, 64, NEXT),
        ("no route", without_route, 100, 0, 64, NEXT),
        ("it fits the pod's link", known_pod, MTU, 0, 64, REDIRECT),
        ("too large for the link", known_pod, MTU + 1, 0, 64, NEXT),
    ] {
        let mut node = node(a);
        open(&node, node.client());
        prepare(&mut node);
        let packet = with_hops(&segment(&node, length), hop_limit);
        let payload = segments.saturating_sub(headers(&node));
        let outcome = node.ingress_by(&packet, INSIDE, payload);
        let fate = (verdict, Counter::ForwardedHit);
        assert_eq!(outcome.fate(), fate, "{what}");
        assert_eq!(outcome.dst(), node.backend(), "{what}");
        let passed = u8::from(verdict == REDIRECT);
        assert_eq!(hops(&outcome.packet), hop_limit - passed, "{what}");
    }
}

#[rstest]
#[case::v4(*IPV4, "224.0.0.5", "0.0.0.0/0")]
#[case::v6(*IPV6, "ff0e::9", "::/0")]
fn packets_from_an_address_that_no_host_has_take_the_stack(
    #[case] a: Addresses,
    #[case] nobody: IpAddr,
    #[case] any: &str,
) {
    let node = node(a);
    // So that a missing route is no reason.
    let without = format!("route del unreachable {any} metric 1\n");
    node.ip(&format!("{without}route add {any} dev inside\n"));
    for (source, verdict, reply) in [
        (a.pod, REDIRECT, Counter::ReplyTranslated),
        (nobody, NEXT, Counter::ReplyPassed),
    ] {
        let (client, backend) = (at(source, 40_000), node.backend());
        open(&node, client);
        assert_eq!(send(&node, client, true, Tcp::Ack), verdict);
        let answer = node.ingress(&tcp(backend, client, Tcp::Ack, b""), INSIDE);
        assert_eq!(answer.fate(), (verdict, reply));
    }
}

/// A pod's frames to a neighbour at its bridge do not have the node's link-layer address. The node
/// forwards them nevertheless.
#[test]
fn a_bridged_pods_frames_to_any_link_layer_address_are_redirected() {
    let node = node(*IPV4);
    let verdict = |packet: &[u8]| node.ingress(packet, INSIDE).verdict;
    // A flow begins only by a frame to the node.
    open(&node, node.client());
    let mut packet = segment(&node, 100);
    assert_eq!(verdict(&packet), REDIRECT);
    packet[5] ^= 0xf0;
    let port = interface::REDIRECTS | interface::BRIDGE_PORT;
    node.world.set_interface(INSIDE, port);
    assert_eq!(verdict(&packet), NEXT);
    let port = port | interface::VETH_PORT;
    node.world.set_interface(INSIDE, port);
    assert_eq!(verdict(&packet), REDIRECT);
}

/// The verdict on an open connection's segment from this source port.
fn verdict(node: &Node, port: u16) -> u32 {
    let client = at(node.addresses.pod, port);
    open(node, client);
    send(node, client, true, Tcp::Ack)
}

#[rstest]
fn routing_rules_by_bridge_protocol_and_ports_apply(#[values(*IPV4, *IPV6)] a: Addresses) {
    // The only route to the backend is in a table of its own.
    let with_rule = |rule| {
        let node = node(a);
        node.ip("link add br0 index 30 type bridge\nlink set br0 up\n\
             route del BACKEND dev inside\nroute add BACKEND dev inside table 100\n");
        node.add_rule(rule);
        node
    };
    let node = with_rule("iif br0 lookup 100");
    assert_eq!(verdict(&node, 1), NEXT, "no port of the bridge");
    let bits = interface::REDIRECTS | interface::BRIDGE_PORT;
    node.world.set_port(INSIDE, bits, 30);
    assert_eq!(verdict(&node, 2), REDIRECT);
    let node = with_rule("ipproto tcp sport 40000-40001 dport 8080 lookup 100");
    assert_eq!(verdict(&node, 40_002), NEXT, "another source port");
    assert_eq!(verdict(&node, 40_001), REDIRECT);
}

/// The stack is recorded to use one of two next hops; a connection's ports select the hop. IPv6
/// accepts several next hops only with addresses.
#[rstest]
#[case::v4(*IPV4, "ipv4", ["", ""])]
#[case::v6(*IPV6, "ipv6", ["via fe80::a", "via fe80::b"])]
fn a_connections_ports_select_one_of_several_next_hops(
    #[case] a: Addresses,
    #[case] family: &str,
    #[case] hops: [&str; 2],
) {
    let node = node(a);
    let (policy, [one, other]) = (format!("{family}/fib_multipath_hash_policy"), hops);
    node.set(&[(policy.as_str(), "1")]);
    node.ip(&format!(
        "route del BACKEND dev inside\n\
         route add BACKEND nexthop {one} dev inside nexthop {other} dev outside\n"
    ));
    let verdicts: BTreeSet<u32> = (1..24).map(|port| verdict(&node, port)).collect();
    assert_eq!(verdicts, BTreeSet::from([REDIRECT, NEXT]));
}
