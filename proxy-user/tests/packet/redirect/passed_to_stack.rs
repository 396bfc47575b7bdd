// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `forwarding: auto`: packets that the stack drops, or must see, are passed to the stack.

use std::net::IpAddr;

use proxy_common::{Counter, maps::interface};
use rstest::rstest;

use super::node::{Node, OUTSIDE, PODS};
use crate::{
    packets::{Tcp, at, correct_ipv4_header, raw, tcp, with_options},
    service::{Addresses, IPV4, IPV6},
    world::{NEXT, Outcome, REDIRECT},
};

/// The verdicts on a connection's first and second packet, and on an answer of its backend.
fn verdicts(node: &Node, client: IpAddr) -> [(u32, Counter); 3] {
    let (client, backend) = (at(client, 40_000), node.backend());
    let first = node.ingress(&tcp(client, node.service(), Tcp::Syn, b""), PODS);
    assert_eq!(first.dst(), backend, "translated, whatever comes then");
    let answer = node.ingress(&tcp(backend, client, Tcp::SynAck, b""), PODS);
    let second = node.ingress(&tcp(client, node.service(), Tcp::Ack, b""), PODS);
    [first, second, answer].map(|outcome: Outcome| outcome.fate())
}

fn all(verdict: u32) -> [(u32, Counter); 3] {
    let reply = match verdict {
        REDIRECT => Counter::ReplyTranslated,
        _ => Counter::ReplyPassed,
    };
    [
        (verdict, Counter::ForwardedNew),
        (verdict, Counter::ForwardedHit),
        (verdict, reply),
    ]
}

/// A node with a default route to every address, so that a missing route is no reason for the
/// stack.
fn with_default_route(a: Addresses) -> Node {
    let node = Node::new(a);
    let any = if a.is_v6() { "::/0" } else { "0.0.0.0/0" };
    node.network.ip(&format!(
        "route del unreachable {any} metric 1\nroute add {any} dev pods\n"
    ));
    node
}

#[rstest]
#[case::node("192.168.40.2")]
#[case::another_of_the_node("192.168.41.2")]
#[case::link_local("169.254.1.1")]
#[case::unspecified("0.0.0.0")]
#[case::multicast("224.0.0.5")]
#[case::broadcast("255.255.255.255")]
#[case::node("fd00:c0::2")]
#[case::link_local("fe80::9")]
#[case::unspecified("::")]
#[case::multicast("ff0e::9")]
#[case::mapped("::ffff:10.40.1.9")]
fn packets_from_a_local_or_invalid_source_address_take_the_stack(#[case] source: IpAddr) {
    let node = with_default_route(Addresses::like(source));
    assert_eq!(verdicts(&node, node.addresses.pod), all(REDIRECT));
    assert_eq!(verdicts(&node, source), all(NEXT));
}

#[rstest]
#[case::v4("127.0.0.1")]
#[case::v6("::1")]
fn packets_from_a_loopback_address_pass_unchanged(#[case] source: IpAddr) {
    let node = with_default_route(Addresses::like(source));
    let packet = tcp(at(source, 40_000), node.service(), Tcp::Syn, b"");
    node.ingress(&packet, PODS).expect_untouched(&packet);
}

#[rstest]
fn a_masqueraded_flow_from_a_node_address_takes_the_stack_in_both_directions(
    #[values(IPV4, IPV6)] a: Addresses,
) {
    let mut node = with_default_route(a);
    // The client is no pod, so the flow is masqueraded.
    let client = a.outside_client();
    node.world.set_node_addresses(&[a.node, a.outsider]);
    let there = node.ingress(&tcp(client, node.service(), Tcp::Syn, b""), OUTSIDE);
    assert_eq!((there.verdict, there.marked), (NEXT, true));
    let out = node.world.egress(&there.packet, true);
    let backend = node.backend();
    let answer = tcp(backend, out.src(), Tcp::SynAck, b"");
    let back = node.ingress(&answer, PODS);
    assert_eq!(back.fate(), (NEXT, Counter::ReplyUnmasqueraded));
}

#[test]
fn packets_with_ipv4_options_take_the_stack() {
    let node = Node::new(IPV4);
    let client = node.client();
    let packet = with_options(tcp(client, node.service(), Tcp::Syn, b""), 1);
    let outcome = node.ingress(&packet, PODS);
    assert_eq!(outcome.fate(), (NEXT, Counter::ForwardedNew));
}

/// Options for the hops on the path, options for the receiver, a routing header without segments
/// left.
#[rstest]
fn packets_with_ipv6_extension_headers_take_the_stack(#[values(0, 60, 43)] kind: u8) {
    let node = Node::new(IPV6);
    let (client, service) = (node.client(), node.service());
    let plain = tcp(client, service, Tcp::Syn, b"");
    let header = [6, 0, 1, if kind == 43 { 0 } else { 4 }, 0, 0, 0, 0];
    let payload = [&header[..], &plain[54..]].concat();
    let outcome = node.ingress(&raw(client.ip(), service.ip(), kind, &payload), PODS);
    assert_eq!(outcome.fate(), (NEXT, Counter::ForwardedNew));
}

/// Later fragments have no ports, so a rule by ports could not hold for all of them.
#[test]
fn fragments_take_the_stack() {
    const MORE: u8 = 0x20;
    let node = Node::new(IPV4);
    let client = node.client();
    let mut packet = tcp(client, node.service(), Tcp::Syn, b"12345678");
    packet[20] |= MORE;
    correct_ipv4_header(&mut packet);
    let outcome = node.ingress(&packet, PODS);
    assert_eq!(outcome.fate(), (NEXT, Counter::ForwardedNew));
}

#[rstest]
fn packets_from_an_interface_without_the_redirects_bit_take_the_stack(
    #[values(IPV4, IPV6)] a: Addresses,
) {
    let mut node = Node::new(a);
    let packet = |port| tcp(at(node.addresses.pod, port), node.service(), Tcp::Syn, b"");
    let [first, second] = [1, 2].map(packet);
    assert_eq!(node.ingress(&first, PODS).verdict, REDIRECT);
    node.world.set_interface(PODS, interface::PODS);
    assert_eq!(node.ingress(&second, PODS).verdict, NEXT);
}
