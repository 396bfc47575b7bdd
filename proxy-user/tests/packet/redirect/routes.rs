// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `forwarding: auto`: routes are looked up with everything that the stack would use.

use std::collections::BTreeSet;

use proxy_common::maps::interface;
use rstest::rstest;

use super::node::{Node, OUTSIDE, PODS};
use crate::{
    packets::{Tcp, at, tcp},
    service::{Addresses, IPV4, IPV6},
    world::{NEXT, REDIRECT},
};

const BRIDGE: u32 = 30;

/// A node whose only route to the backend is in a separate routing table.
fn node(a: Addresses) -> Node {
    let node = Node::new(a);
    node.remove("route");
    let backend = node.addresses.backend;
    node.network.ip(&format!(
        "link add br0 index {BRIDGE} type bridge\nlink set br0 up\nroute add {backend} dev pods table 100\n"
    ));
    node
}

/// The verdict on a new connection from this source port.
fn verdict(node: &Node, port: u16) -> u32 {
    let client = at(node.addresses.pod, port);
    let packet = tcp(client, node.service(), Tcp::Syn, b"");
    node.ingress(&packet, PODS).verdict
}

#[rstest]
fn a_routing_rule_by_bridge_applies_to_packets_from_its_ports(#[values(IPV4, IPV6)] a: Addresses) {
    let mut node = node(a);
    node.network.add_rule(a, "iif br0 lookup 100");
    assert_eq!(verdict(&node, 1), NEXT, "no port of the bridge");
    let bits = interface::REDIRECTS | interface::BRIDGE_PORT;
    node.world.set_port(PODS, bits, BRIDGE);
    assert_eq!(verdict(&node, 2), REDIRECT);
}

#[rstest]
fn a_routing_rule_by_protocol_and_ports_applies(#[values(IPV4, IPV6)] a: Addresses) {
    let node = node(a);
    node.network
        .add_rule(a, "ipproto tcp sport 40000-40001 dport 8080 lookup 100");
    assert_eq!(verdict(&node, 40_002), NEXT, "another source port");
    assert_eq!(verdict(&node, 40_001), REDIRECT);
}

/// Only one of two next hops can be reached without the stack; a connection's ports select the hop.
#[rstest]
fn a_connections_ports_select_one_of_several_next_hops(#[values(IPV4, IPV6)] a: Addresses) {
    let mut node = Node::new(a);
    node.remove("route");
    let (policy, backend) = if a.is_v6() {
        ("ipv6/fib_multipath_hash_policy", "fd00:40:0:1::10/128")
    } else {
        ("ipv4/fib_multipath_hash_policy", "10.40.1.10/32")
    };
    node.network.set(&[(policy, "1")]);
    // IPv6 accepts several next hops only with addresses.
    let hops = if a.is_v6() {
        "nexthop via fe80::a dev pods nexthop via fe80::b dev outside"
    } else {
        "nexthop dev pods nexthop dev outside"
    };
    node.network.ip(&format!("route add {backend} {hops}\n"));
    node.world.set_interface(OUTSIDE, interface::NO_LINK_LAYER);
    let verdicts: BTreeSet<u32> = (1..64).map(|port| verdict(&node, port)).collect();
    assert_eq!(verdicts, BTreeSet::from([REDIRECT, NEXT]));
}
