// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rejected packets, and the answers to them.

use etherparse::PacketHeaders;
use proxy_common::{Counter, FrontendKind, Protocol, ServiceFlags, Settings};
use rstest::rstest;

use crate::{
    packets::{CLIENT_MAC, NODE_MAC, Tcp, at, icmp_sum, internet_sum, raw, tcp, udp},
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

#[rstest]
fn unserved_ports_of_a_cluster_ip_are_rejected_in_every_protocol(
    #[values(IPV4, IPV6)] a: Addresses,
) {
    let world = World::new(&[Service::web(a)]);
    let client = a.client();
    let other = world.ingress(&tcp(client, at(a.cluster_ip, 81), Tcp::Syn, b""));
    expect_answer(&other, Counter::RejectedUnserved);
    let datagram = udp(client, a.service(), b"?");
    let outcome = world.ingress(&datagram);
    expect_answer(&outcome, Counter::RejectedUnserved);
    expect_unreachable(&outcome.packet, &datagram, a.is_v6());
}

#[rstest]
fn a_segment_of_no_flow_is_reset_at_an_address_of_a_service(#[values(IPV4, IPV6)] a: Addresses) {
    let service = Service::web(a).at_balancer(a, 0).with(
        Some(a.other_backend),
        80,
        FrontendKind::ExternalIp,
        0,
    );
    let mut world = World::new(&[service]);
    for address in [a.cluster_ip, a.balancer, a.other_backend] {
        for client in [a.client(), a.outside_client()] {
            for flags in [Tcp::Ack, Tcp::SynAck, Tcp::Fin] {
                let segment = tcp(client, at(address, 80), flags, b"");
                // Another node with this address may have sent the SYN.
                if flags == Tcp::SynAck && address != a.cluster_ip {
                    world.expect_untouched(&segment);
                    continue;
                }
                let outcome = world.ingress(&segment);
                expect_answer(&outcome, Counter::RejectedUnknownFlow);
                expect_reset(&outcome, 2000, None);
            }
            world.expect_untouched(&tcp(client, at(address, 80), Tcp::Rst, b""));
        }
    }
    let client = a.outside_client();
    // Connections of another proxy still exist.
    world.configure(|settings| settings.flags &= !Settings::RESET_UNKNOWN);
    for address in [a.cluster_ip, a.balancer, a.other_backend] {
        world.expect_untouched(&tcp(client, at(address, 80), Tcp::Ack, b""));
    }
}

#[rstest]
fn a_segment_of_no_flow_passes_where_no_service_or_the_stack_answers(
    #[values(IPV4, IPV6)] a: Addresses,
) {
    let service = Service::web(a)
        .at_balancer(a, 0)
        .with(Some(a.node), 80, FrontendKind::ExternalIp, 0)
        .at_node_port(30_080);
    let world = World::new(&[service]);
    let client = a.outside_client();
    for to in [
        // No service is at these ports.
        at(a.balancer, 81),
        at(a.balancer, 8080),
        at(a.balancer, 30_080),
        // This is a frontend's port, but at another address.
        at(a.backend, 80),
        // These are the node's own addresses.
        at(a.node, 80),
        at(a.node, 30_080),
    ] {
        for flags in [Tcp::Ack, Tcp::SynAck] {
            world.expect_untouched(&tcp(client, to, flags, b""));
        }
    }
}

#[rstest]
fn a_segment_of_no_flow_gets_no_answer_where_policy_drops(#[values(IPV4, IPV6)] a: Addresses) {
    let local = ServiceFlags::EXTERNAL_LOCAL | ServiceFlags::EXTERNAL_BLOCK_LOCAL;
    let mut service = Service::web(a)
        .at_balancer(a, ServiceFlags::SOURCE_RANGES)
        .with(Some(a.other_backend), 80, FrontendKind::ExternalIp, local);
    service.sources = vec!["192.0.2.0/24", "2001:db8:2::/48"];
    let world = World::new(&[service]);
    let client = a.outside_client();
    for (address, counter) in [
        (a.balancer, Counter::DroppedSource),
        (a.other_backend, Counter::DroppedNoLocalEndpoint),
    ] {
        let outcome = world.ingress(&tcp(client, at(address, 80), Tcp::Ack, b""));
        assert_eq!(outcome.fate(), (SHOT, counter));
    }
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
