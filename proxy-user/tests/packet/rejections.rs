// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rejected packets, and the answers to them.

use proxy_common::{Counter, FrontendKind, Protocol, ServiceFlags, Settings};
use rstest::rstest;

use crate::{
    packets::{CLIENT_MAC, NODE_MAC, Tcp, at, internet_sum, seen, tcp, udp},
    service::{Addresses, Service},
    world::{NEXT, Outcome, REDIRECT, SHOT, World},
};

fn empty(a: Addresses, protocol: Protocol) -> World {
    World::new(&[Service::cluster_ip("empty", protocol, a.cluster_ip, &[])])
}

/// Expects that the answer to a rejected packet goes back to its sender.
fn expect_answer(outcome: &Outcome, counter: Counter) {
    assert_eq!((outcome.verdict, outcome.counter), (REDIRECT, counter));
    assert_eq!(outcome.packet[..6], CLIENT_MAC);
    assert_eq!(outcome.packet[6..12], NODE_MAC);
}

/// Expects a reset with these numbers, from the destination of the rejected segment.
fn expect_reset(outcome: &Outcome, sequence: u32, acknowledgement: Option<u32>) {
    let headers =
        etherparse::PacketHeaders::from_ethernet_slice(&outcome.packet).expect("a packet");
    let tcp = headers
        .transport
        .and_then(|transport| transport.tcp())
        .expect("TCP");
    assert!(tcp.rst && !tcp.syn && !tcp.fin);
    assert_eq!(
        (tcp.sequence_number, tcp.ack),
        (sequence, acknowledgement.is_some())
    );
    assert_eq!(tcp.acknowledgment_number, acknowledgement.unwrap_or(0));
}

#[rstest]
fn a_connection_to_a_service_without_endpoints_is_reset(#[values(false, true)] v6: bool) {
    let a = Addresses::of(v6);
    let (client, service) = (at(a.pod, 40_000), at(a.cluster_ip, 80));
    let outcome = empty(a, Protocol::TCP).ingress(&tcp(client, service, Tcp::Syn, b""));
    expect_answer(&outcome, Counter::RejectedNoEndpoint);
    let answer = seen(&outcome.packet);
    assert_eq!((answer.src, answer.dst), (service, client));
    expect_reset(&outcome, 0, Some(1001));
}

#[rstest]
fn a_datagram_to_a_service_without_endpoints_is_answered_with_port_unreachable(
    #[values(false, true)] v6: bool,
) {
    let a = Addresses::of(v6);
    let packet = udp(
        at(a.pod, 40_000),
        at(a.cluster_ip, 80),
        b"a question of some length",
    );
    let outcome = empty(a, Protocol::UDP).ingress(&packet);
    expect_answer(&outcome, Counter::RejectedNoEndpoint);
    expect_unreachable(&outcome.packet, &packet, v6);
}

fn expect_unreachable(answer: &[u8], packet: &[u8], v6: bool) {
    let header = if v6 { 40 } else { 20 };
    let (ip, icmp) = answer[14..].split_at(header);
    let quoted = &packet[14..14 + header + 8];
    assert_eq!(icmp[..2], if v6 { [1, 4] } else { [3, 3] });
    assert_eq!(
        &icmp[8..],
        quoted,
        "the packet's own header and eight bytes"
    );
    if v6 {
        let length = u32::try_from(icmp.len()).expect("short").to_be_bytes();
        assert_eq!(
            internet_sum(&[&ip[8..40], &length, &[0, 0, 0, 58], icmp]),
            0
        );
        assert_eq!(
            (&ip[8..24], &ip[24..40]),
            (&packet[38..54], &packet[22..38])
        );
    } else {
        assert_eq!(internet_sum(&[ip]), 0);
        assert_eq!(internet_sum(&[icmp]), 0);
        assert_eq!(
            (&ip[12..16], &ip[16..20]),
            (&packet[30..34], &packet[26..30])
        );
        assert_eq!(
            usize::from(u16::from_be_bytes([ip[2], ip[3]])),
            answer.len() - 14
        );
    }
}

#[rstest]
fn unserved_ports_of_a_cluster_ip_are_rejected_in_every_protocol(#[values(false, true)] v6: bool) {
    let a = Addresses::of(v6);
    let backend = at(a.backend, 8080);
    let world = World::new(&[Service::cluster_ip(
        "web",
        Protocol::TCP,
        a.cluster_ip,
        &[backend],
    )]);
    let client = at(a.pod, 40_000);
    let other = world.ingress(&tcp(client, at(a.cluster_ip, 81), Tcp::Syn, b""));
    expect_answer(&other, Counter::RejectedUnserved);
    let datagram = udp(client, at(a.cluster_ip, 80), b"?");
    let outcome = world.ingress(&datagram);
    expect_answer(&outcome, Counter::RejectedUnserved);
    expect_unreachable(&outcome.packet, &datagram, v6);
}

#[rstest]
fn a_segment_of_no_flow_is_reset_at_an_address_of_a_service(#[values(false, true)] v6: bool) {
    let a = Addresses::of(v6);
    let service = Service::cluster_ip("web", Protocol::TCP, a.cluster_ip, &[at(a.backend, 8080)])
        .with(Some(a.balancer), 80, FrontendKind::LoadBalancer, 0)
        .with(Some(a.other_backend), 80, FrontendKind::ExternalIp, 0);
    let mut world = World::new(&[service]);
    for address in [a.cluster_ip, a.balancer, a.other_backend] {
        for client in [at(a.pod, 40_000), at(a.outsider, 40_000)] {
            for flags in [Tcp::Ack, Tcp::SynAck, Tcp::Fin] {
                let segment = tcp(client, at(address, 80), flags, b"");
                // Another node with this address may have sent the SYN.
                if flags == Tcp::SynAck && address != a.cluster_ip {
                    expect_untouched(&world, &segment);
                    continue;
                }
                let outcome = world.ingress(&segment);
                expect_answer(&outcome, Counter::RejectedUnknownFlow);
                expect_reset(&outcome, 2000, None);
            }
            expect_untouched(&world, &tcp(client, at(address, 80), Tcp::Rst, b""));
        }
    }
    let client = at(a.outsider, 40_000);
    // Connections of another proxy still exist.
    world.configure(|settings| settings.flags &= !Settings::RESET_UNKNOWN);
    for address in [a.cluster_ip, a.balancer, a.other_backend] {
        expect_untouched(&world, &tcp(client, at(address, 80), Tcp::Ack, b""));
    }
}

#[rstest]
fn a_segment_of_no_flow_passes_where_no_service_or_the_stack_answers(
    #[values(false, true)] v6: bool,
) {
    let a = Addresses::of(v6);
    let service = Service::cluster_ip("web", Protocol::TCP, a.cluster_ip, &[at(a.backend, 8080)])
        .with(Some(a.balancer), 80, FrontendKind::LoadBalancer, 0)
        .with(Some(a.node), 80, FrontendKind::ExternalIp, 0)
        .with(None, 30_080, FrontendKind::NodePort, 0);
    let world = World::new(&[service]);
    let client = at(a.outsider, 40_000);
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
            expect_untouched(&world, &tcp(client, to, flags, b""));
        }
    }
}

#[rstest]
fn a_segment_of_no_flow_gets_no_answer_where_policy_drops(#[values(false, true)] v6: bool) {
    let a = Addresses::of(v6);
    let mut service =
        Service::cluster_ip("web", Protocol::TCP, a.cluster_ip, &[at(a.backend, 8080)])
            .with(
                Some(a.balancer),
                80,
                FrontendKind::LoadBalancer,
                ServiceFlags::SOURCE_RANGES,
            )
            .with(
                Some(a.other_backend),
                80,
                FrontendKind::ExternalIp,
                ServiceFlags::EXTERNAL_LOCAL | ServiceFlags::EXTERNAL_BLOCK_LOCAL,
            );
    service.sources = vec!["192.0.2.0/24", "2001:db8:2::/48"];
    let world = World::new(&[service]);
    let client = at(a.outsider, 40_000);
    for (address, counter) in [
        (a.balancer, Counter::DroppedSource),
        (a.other_backend, Counter::DroppedNoLocalEndpoint),
    ] {
        let outcome = world.ingress(&tcp(client, at(address, 80), Tcp::Ack, b""));
        assert_eq!((outcome.verdict, outcome.counter), (SHOT, counter));
    }
}

fn expect_untouched(world: &World, packet: &[u8]) {
    let outcome = world.ingress(packet);
    assert_eq!(
        (outcome.verdict, outcome.counter),
        (NEXT, Counter::Untouched)
    );
    assert_eq!(outcome.packet, packet);
}

#[test]
fn answers_to_rejected_packets_are_rate_limited() {
    let a = Addresses::of(false);
    let world = empty(a, Protocol::UDP);
    let packet = udp(at(a.pod, 40_000), at(a.cluster_ip, 80), b"?");
    let silent = (0..6_000)
        .map(|_| world.ingress_quietly(&packet))
        .filter(|verdict| *verdict == SHOT)
        .count();
    assert!(
        silent > 0,
        "6 000 at once are more than a burst on every CPU and what comes back meanwhile"
    );
}
