// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `forwarding: auto`: packets that the stack drops, or must see, are passed to the stack.

use std::net::IpAddr;

use proxy_common::Counter;
use rstest::rstest;

use super::node::{Node, PODS};
use crate::{
    packets::{Tcp, at, tcp},
    service::Addresses,
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
