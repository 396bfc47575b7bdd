// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The answers to rejected packets. What is rejected stands in tests/fuzz/cases/first-packets.txt.

use etherparse::PacketHeaders;
use proxy_common::{Counter, Protocol};
use rstest::rstest;

use crate::{
    packets::{CLIENT_MAC, NODE_MAC, Tcp, icmp_sum, internet_sum, raw, tcp, udp},
    service::{Addresses, IPV4, IPV6, Service},
    world::{LOOPBACK, Outcome, REDIRECT, SHOT, World},
};

fn empty(a: Addresses, protocol: Protocol) -> World {
    World::new(&[Service::over(protocol, a).backed_by(&[])])
}

/// Expects that the answer to a rejected packet goes back to its sender.
fn expect_answer(outcome: &Outcome, counter: Counter) {
    assert_eq!(outcome.fate(), (REDIRECT, counter));
    assert_eq!(outcome.packet[..6], CLIENT_MAC);
    assert_eq!(outcome.packet[6..12], NODE_MAC);
}

/// Expects a reset with these numbers, from the destination of the rejected segment.
fn expect_reset(outcome: &Outcome, sequence: u32, acknowledgement: Option<u32>) {
    let headers = PacketHeaders::from_ethernet_slice(&outcome.packet).expect("a packet");
    let transport = headers.transport.expect("a transport");
    let tcp = transport.tcp().expect("TCP");
    assert!(tcp.rst && !tcp.syn && !tcp.fin);
    assert_eq!(tcp.sequence_number, sequence);
    assert_eq!(tcp.ack, acknowledgement.is_some());
    assert_eq!(tcp.acknowledgment_number, acknowledgement.unwrap_or(0));
}

#[rstest]
fn a_connection_to_a_service_without_endpoints_is_reset(#[values(IPV4, IPV6)] a: Addresses) {
    let (client, service) = (a.client(), a.service());
    let outcome = empty(a, Protocol::TCP).ingress(&tcp(client, service, Tcp::Syn, b""));
    expect_answer(&outcome, Counter::RejectedNoEndpoint);
    assert_eq!(outcome.ends(), (service, client));
    expect_reset(&outcome, 0, Some(1001));
}

#[rstest]
fn a_datagram_to_a_service_without_endpoints_is_answered_with_port_unreachable(
    #[values(IPV4, IPV6)] a: Addresses,
) {
    let packet = udp(a.client(), a.service(), b"a question of some length");
    let outcome = empty(a, Protocol::UDP).ingress(&packet);
    expect_answer(&outcome, Counter::RejectedNoEndpoint);
    expect_unreachable(&outcome.packet, &packet, a.is_v6());
}

/// As kube-proxy does; by the node's routes they could circle between it and its router.
#[rstest]
fn packets_of_other_protocols_to_a_cluster_ip_are_refused(
    #[values(IPV4, IPV6)] a: Addresses,
    #[values(4, 47, 50)] protocol: u8,
) {
    let mut world = empty(a, Protocol::TCP);
    let packet = |dst, length| raw(a.outsider, dst, protocol, &vec![7; length]);
    let outcome = world.ingress(&packet(a.cluster_ip, 20));
    expect_answer(&outcome, Counter::RejectedUnserved);
    let sent = packet(a.cluster_ip, 20);
    expect_unreachable(&outcome.packet, &sent, a.is_v6());
    let short = world.ingress(&packet(a.cluster_ip, 4));
    assert_eq!(short.fate(), (SHOT, Counter::RejectedSilently));
    for dst in [a.node, a.backend, a.other_cluster_ip] {
        world.expect_untouched(&packet(dst, 20));
    }
    // Now the frame is for another machine.
    world.set_interface(LOOPBACK, 0);
    world.expect_untouched(&packet(a.cluster_ip, 20));
}

fn expect_unreachable(answer: &[u8], packet: &[u8], v6: bool) {
    let header = if v6 { 40 } else { 20 };
    let (ip, icmp) = answer[14..].split_at(header);
    let quoted = &packet[14..14 + header + 8];
    assert_eq!(icmp[..2], if v6 { [1, 4] } else { [3, 3] });
    assert_eq!(
        icmp[8..],
        *quoted,
        "the packet's own header and eight bytes"
    );
    if v6 {
        assert_eq!(ip[8..40], [&packet[38..54], &packet[22..38]].concat());
    } else {
        assert_eq!(internet_sum(&[ip]), 0);
        assert_eq!(ip[12..20], [&packet[30..34], &packet[26..30]].concat());
        assert_eq!(ip[2..4], (answer.len() as u16 - 14).to_be_bytes());
    }
    assert_eq!(icmp_sum(answer), 0);
}

#[test]
fn answers_to_rejected_packets_are_rate_limited() {
    let a = IPV4;
    let world = empty(a, Protocol::UDP);
    let packet = udp(a.client(), a.service(), b"?");
    // More than a burst on every CPU and what comes back meanwhile.
    let is_silent = |_| world.ingress_quietly(&packet) == SHOT;
    assert!((0..6_000).any(is_silent));
}
