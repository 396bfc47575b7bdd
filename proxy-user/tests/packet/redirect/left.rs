// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `forwarding: auto`: packets that the stack drops, or must see, are passed to the stack.

use std::net::IpAddr;

use proxy_common::{Counter, maps::interface};
use rstest::rstest;

use super::node::{Node, OUTSIDE, PODS};
use crate::{
    packets::{Tcp, at, internet_sum, raw, seen, tcp},
    world::{NEXT, Outcome, REDIRECT},
};

/// The verdicts on a connection's first and second packet, and on an answer of its backend.
fn verdicts(node: &Node, client: IpAddr) -> [(u32, Counter); 3] {
    let (client, backend) = (at(client, 40_000), at(node.addresses.backend, 8080));
    let first = node.ingress(&tcp(client, node.service(), Tcp::Syn, b""), PODS);
    assert_eq!(
        seen(&first.packet).dst,
        backend,
        "translated, whatever comes then"
    );
    let answer = node.ingress(&tcp(backend, client, Tcp::SynAck, b""), PODS);
    let second = node.ingress(&tcp(client, node.service(), Tcp::Ack, b""), PODS);
    [first, second, answer].map(|outcome: Outcome| (outcome.verdict, outcome.counter))
}

fn all(verdict: u32) -> [(u32, Counter); 3] {
    [
        (verdict, Counter::ForwardedNew),
        (verdict, Counter::ForwardedHit),
        (
            verdict,
            if verdict == REDIRECT {
                Counter::ReplyTranslated
            } else {
                Counter::ReplyPassed
            },
        ),
    ]
}

/// A node with a default route to every address, so that a missing route is no reason for the
/// stack.
fn with_default_route(v6: bool) -> Node {
    let node = Node::new(v6);
    let any = if v6 { "::/0" } else { "0.0.0.0/0" };
    node.ip(&format!(
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
fn a_source_that_no_client_beyond_the_node_has_is_the_stacks_to_judge(#[case] source: IpAddr) {
    let node = with_default_route(source.is_ipv6());
    assert_eq!(verdicts(&node, node.addresses.pod), all(REDIRECT));
    assert_eq!(verdicts(&node, source), all(NEXT));
}

#[rstest]
#[case::v4("127.0.0.1")]
#[case::v6("::1")]
fn a_loopback_source_is_left_untouched(#[case] source: IpAddr) {
    let node = with_default_route(source.is_ipv6());
    let packet = tcp(at(source, 40_000), node.service(), Tcp::Syn, b"");
    let outcome = node.ingress(&packet, PODS);
    assert_eq!(
        (outcome.verdict, outcome.counter, outcome.packet),
        (NEXT, Counter::Untouched, packet)
    );
}

#[rstest]
fn a_spoofed_source_of_a_masqueraded_flow_is_left_to_the_stack_both_ways(
    #[values(false, true)] v6: bool,
) {
    let mut node = with_default_route(v6);
    // The client is no pod, so the flow is masqueraded.
    let source = if v6 { "2001:db8:113::9" } else { "203.0.113.9" };
    let client = at(source.parse().expect("an address"), 40_000);
    node.world
        .set_node_addresses(&[node.addresses.node, client.ip()]);
    let there = node.ingress(&tcp(client, node.service(), Tcp::Syn, b""), OUTSIDE);
    assert_eq!((there.verdict, there.marked), (NEXT, true));
    let out = node.world.egress(&there.packet, true);
    let backend = at(node.addresses.backend, 8080);
    let answer = tcp(backend, seen(&out.packet).src, Tcp::SynAck, b"");
    let back = node.ingress(&answer, PODS);
    assert_eq!(
        (back.verdict, back.counter),
        (NEXT, Counter::ReplyUnmasqueraded)
    );
}

#[test]
fn ipv4_options_are_the_stacks() {
    let node = Node::new(false);
    let client = at(node.addresses.pod, 40_000);
    let mut packet = tcp(client, node.service(), Tcp::Syn, b"");
    // Adds the IPv4 option "no operation" four times.
    packet.splice(34..34, [1; 4]);
    packet[14] += 1;
    let length = u16::try_from(packet.len() - 14).expect("short");
    packet[16..18].copy_from_slice(&length.to_be_bytes());
    packet[24..26].fill(0);
    let sum = internet_sum(&[&packet[14..38]]);
    packet[24..26].copy_from_slice(&sum.to_be_bytes());
    let outcome = node.ingress(&packet, PODS);
    assert_eq!(
        (outcome.verdict, outcome.counter),
        (NEXT, Counter::ForwardedNew)
    );
}

/// Options for the hops on the path, options for the receiver, a routing header without segments
/// left.
#[rstest]
fn ipv6_extension_headers_are_the_stacks(#[values(0, 60, 43)] kind: u8) {
    let node = Node::new(true);
    let (client, service) = (at(node.addresses.pod, 40_000), node.service());
    let plain = tcp(client, service, Tcp::Syn, b"");
    let header = [6, 0, 1, if kind == 43 { 0 } else { 4 }, 0, 0, 0, 0];
    let payload = [&header[..], &plain[54..]].concat();
    let outcome = node.ingress(&raw(client.ip(), service.ip(), kind, &payload), PODS);
    assert_eq!(
        (outcome.verdict, outcome.counter),
        (NEXT, Counter::ForwardedNew)
    );
}

/// Later fragments have no ports, so a rule by ports could not hold for all of them.
#[test]
fn fragments_are_the_stacks() {
    const MORE: u8 = 0x20;
    let node = Node::new(false);
    let client = at(node.addresses.pod, 40_000);
    let mut packet = tcp(client, node.service(), Tcp::Syn, b"12345678");
    packet[20] |= MORE;
    packet[24..26].fill(0);
    let sum = internet_sum(&[&packet[14..34]]);
    packet[24..26].copy_from_slice(&sum.to_be_bytes());
    let outcome = node.ingress(&packet, PODS);
    assert_eq!(
        (outcome.verdict, outcome.counter),
        (NEXT, Counter::ForwardedNew)
    );
}

#[rstest]
fn an_interface_without_the_agents_leave_redirects_nothing(#[values(false, true)] v6: bool) {
    let mut node = Node::new(v6);
    let packet = |port| tcp(at(node.addresses.pod, port), node.service(), Tcp::Syn, b"");
    let [first, second] = [1, 2].map(packet);
    assert_eq!(node.ingress(&first, PODS).verdict, REDIRECT);
    node.world.set_interface(PODS, interface::PODS);
    assert_eq!(node.ingress(&second, PODS).verdict, NEXT);
}
