// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Answers of the node itself: to protocols that no service has, and how many there are. What else
//! is answered stands in tests/fuzz/cases.

use proxy_common::{Counter, Protocol, Settings};
use rstest::rstest;

use crate::{
    packets::{CLIENT_MAC, NODE_MAC, addresses, icmp, raw, transport, transport_sum, udp},
    service::{Addresses, IPV4, IPV6, Service},
    world::{LOOPBACK, REDIRECT, SHOT, World},
};

/// As kube-proxy does; by the node's routes they could circle between it and its router.
#[rstest]
fn packets_of_other_protocols_to_a_cluster_ip_are_refused(
    #[values(IPV4, IPV6)] a: Addresses,
    #[values(4, 47, 50)] protocol: u8,
) {
    let world = World::new(&[Service::web(a)]);
    let packet = |dst, length| raw(a.outsider, dst, protocol, &vec![7; length]);
    let sent = packet(a.cluster_ip, 20);
    let outcome = world.ingress(&sent);
    assert_eq!(outcome.fate(), (REDIRECT, Counter::RejectedUnserved));
    assert_eq!(outcome.packet[..12], [CLIENT_MAC, NODE_MAC].concat());
    assert_eq!(addresses(&outcome.packet), (a.cluster_ip, a.outsider));
    assert_eq!(transport_sum(&outcome.packet), 0);
    // A port unreachable with the packet's own header and eight bytes.
    let (answer, l4) = (&outcome.packet, transport(&sent));
    let (field, header) = if a.is_v6() { (18, l4) } else { (16, 14) };
    let length = (answer.len() - header) as u16;
    assert_eq!(answer[field..field + 2], length.to_be_bytes());
    assert_eq!(answer[l4..l4 + 2], if a.is_v6() { [1, 4] } else { [3, 3] });
    assert_eq!(answer[l4 + 8..], sent[14..l4 + 8]);
    let short = world.ingress(&packet(a.cluster_ip, 4));
    assert_eq!(short.fate(), (SHOT, Counter::RejectedSilently));
    for dst in [a.node, a.backend, a.other_cluster_ip] {
        world.expect_untouched(&packet(dst, 20));
    }
    // Now the frame is for another machine.
    world.set_interface(LOOPBACK, 0);
    world.expect_untouched(&sent);
}

/// What stands in tests/fuzz/cases/pings.txt are requests.
#[rstest]
fn an_echo_reply_to_a_cluster_ip_is_not_answered(#[values(IPV4, IPV6)] a: Addresses) {
    let mut world = World::new(&[Service::web(a)]);
    world.configure(|settings| settings.flags |= Settings::ANSWER_PING);
    let kind = if a.is_v6() { 129 } else { 0 };
    let reply = icmp(a.outsider, a.cluster_ip, &[kind, 0, 0, 0, 0, 7, 0, 1]);
    world.expect_untouched(&reply);
}

#[rstest]
fn answers_to_rejected_packets_and_to_pings_are_rate_limited(#[values(false, true)] pings: bool) {
    let a = IPV4;
    let mut world = World::new(&[Service::over(Protocol::UDP, a).backed_by(&[])]);
    world.configure(|settings| settings.flags |= Settings::ANSWER_PING);
    let packet = match pings {
        true => icmp(a.outsider, a.cluster_ip, &[8, 0, 0, 0, 0, 7, 0, 1]),
        false => udp(a.client(), a.service(), b"?"),
    };
    // More than a burst on every CPU and what comes back meanwhile.
    let verdicts: Vec<_> = (0..6_000).map(|_| world.ingress_quietly(&packet)).collect();
    assert!(verdicts.contains(&REDIRECT) && verdicts.contains(&SHOT));
}
