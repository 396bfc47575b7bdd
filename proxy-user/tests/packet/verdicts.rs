// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who is forwarded, rejected, dropped or left alone, and what a rejected client is told.

use portolan::config::set_allocated;
use proxy_common::{Counter, EndpointSet, FrontendKind, Protocol, ServiceFlags, Settings};
use rstest::rstest;

use crate::{
    packets::{CLIENT_MAC, NODE_MAC, Tcp, at, internet_sum, seen, tcp, udp},
    world::{Addresses, NEXT, Outcome, REDIRECT, SHOT, Service, World},
};

fn empty(a: Addresses, protocol: Protocol) -> World {
    World::new(&[Service::cluster_ip("empty", protocol, a.cluster_ip, &[])])
}

/// The answer to a rejected packet goes back where it came from.
fn is_answer(outcome: &Outcome, counter: Counter) {
    assert_eq!((outcome.verdict, outcome.counter), (REDIRECT, counter));
    assert_eq!(outcome.packet[..6], CLIENT_MAC);
    assert_eq!(outcome.packet[6..12], NODE_MAC);
}

/// A reset of this sequence and acknowledgement number, from where the segment went.
fn is_reset(outcome: &Outcome, sequence: u32, acknowledgement: Option<u32>) {
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
#[case::v4(false)]
#[case::v6(true)]
fn a_connection_to_a_service_without_endpoints_is_reset(#[case] v6: bool) {
    let a = Addresses::of(v6);
    let (client, service) = (at(a.pod, 40_000), at(a.cluster_ip, 80));
    let outcome = empty(a, Protocol::TCP).ingress(&tcp(client, service, Tcp::Syn, b""));
    is_answer(&outcome, Counter::RejectedNoEndpoint);
    let answer = seen(&outcome.packet);
    assert_eq!((answer.src, answer.dst), (service, client));
    is_reset(&outcome, 0, Some(1001));
}

#[rstest]
#[case::v4(false)]
#[case::v6(true)]
fn a_datagram_to_a_service_without_endpoints_is_answered_with_port_unreachable(#[case] v6: bool) {
    let a = Addresses::of(v6);
    let packet = udp(
        at(a.pod, 40_000),
        at(a.cluster_ip, 80),
        b"a question of some length",
    );
    let outcome = empty(a, Protocol::UDP).ingress(&packet);
    is_answer(&outcome, Counter::RejectedNoEndpoint);
    is_unreachable(&outcome.packet, &packet, v6);
}

fn is_unreachable(answer: &[u8], packet: &[u8], v6: bool) {
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
#[case::v4(false)]
#[case::v6(true)]
fn unserved_ports_of_a_cluster_ip_are_rejected_in_every_protocol(#[case] v6: bool) {
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
    is_answer(&other, Counter::RejectedUnserved);
    let datagram = udp(client, at(a.cluster_ip, 80), b"?");
    let outcome = world.ingress(&datagram);
    is_answer(&outcome, Counter::RejectedUnserved);
    is_unreachable(&outcome.packet, &datagram, v6);
}

#[rstest]
#[case::v4(false)]
#[case::v6(true)]
fn a_segment_of_no_flow_is_reset_at_a_cluster_ip_and_passes_elsewhere(#[case] v6: bool) {
    let a = Addresses::of(v6);
    let service = Service::cluster_ip("web", Protocol::TCP, a.cluster_ip, &[at(a.backend, 8080)])
        .with(Some(a.balancer), 80, FrontendKind::LoadBalancer, 0);
    let world = World::new(&[service]);
    let client = at(a.pod, 40_000);
    for flags in [Tcp::Ack, Tcp::SynAck, Tcp::Fin] {
        let outcome = world.ingress(&tcp(client, at(a.cluster_ip, 80), flags, b""));
        is_answer(&outcome, Counter::RejectedUnknownFlow);
        is_reset(&outcome, 2000, None);
    }
    for packet in [
        tcp(client, at(a.cluster_ip, 80), Tcp::Rst, b""),
        tcp(client, at(a.balancer, 80), Tcp::Ack, b""),
        tcp(client, at(a.balancer, 80), Tcp::SynAck, b""),
    ] {
        let outcome = world.ingress(&packet);
        assert_eq!((outcome.verdict, &outcome.packet), (NEXT, &packet));
        assert_eq!(outcome.counter, Counter::Untouched);
    }
}

#[rstest]
#[case::v4(false)]
#[case::v6(true)]
fn local_policy_drops_outsiders_and_short_circuits_pods(#[case] v6: bool) {
    let a = Addresses::of(v6);
    let local = ServiceFlags::EXTERNAL_LOCAL | ServiceFlags::EXTERNAL_BLOCK_LOCAL;
    let mut service = Service::cluster_ip(
        "edge",
        Protocol::TCP,
        a.cluster_ip,
        &[at(a.backend, 8080)],
    )
    .with(Some(a.balancer), 80, FrontendKind::LoadBalancer, local);
    let mut world = World::new(&[]);
    world.apply(&service);
    let from = |world: &World, client, port| {
        world.ingress(&tcp(at(client, port), at(a.balancer, 80), Tcp::Syn, b""))
    };
    let dropped = from(&world, a.outsider, 1);
    assert_eq!(
        (dropped.verdict, dropped.counter),
        (SHOT, Counter::DroppedNoLocalEndpoint)
    );
    let pod = from(&world, a.pod, 1);
    assert_eq!((pod.counter, pod.marked), (Counter::ForwardedNew, false));
    let host = from(&world, a.node, 1);
    assert_eq!((host.counter, host.marked), (Counter::ForwardedNew, true));

    service.backends[0].1 = EndpointSet::CLUSTER.union(EndpointSet::LOCAL);
    world.apply(&service);
    let outsider = from(&world, a.outsider, 2);
    assert_eq!(
        (outsider.counter, outsider.marked),
        (Counter::ForwardedNew, false)
    );
}

#[rstest]
#[case::v4(false)]
#[case::v6(true)]
fn pods_may_be_told_by_the_interface_they_are_behind(#[case] v6: bool) {
    let a = Addresses::of(v6);
    let service = Service::cluster_ip("web", Protocol::TCP, a.cluster_ip, &[at(a.backend, 8080)]);
    let mut world = World::new(&[service]);
    world.configure(|settings| settings.flags |= Settings::PODS_BY_INTERFACE);
    let from = |world: &World, client, port| {
        let syn = tcp(at(client, port), at(a.cluster_ip, 80), Tcp::Syn, b"");
        let outcome = world.ingress(&syn);
        assert_eq!(outcome.counter, Counter::ForwardedNew);
        outcome.marked
    };
    // An interface that nothing is known of, one of others, one of pods; addresses tell nothing.
    assert!(from(&world, a.pod, 1) && from(&world, a.outsider, 1));
    world.set_pods_behind(false);
    assert!(from(&world, a.pod, 2) && from(&world, a.outsider, 2));
    world.set_pods_behind(true);
    assert!(!from(&world, a.pod, 3) && !from(&world, a.outsider, 3));
}

#[rstest]
#[case::v4(false)]
#[case::v6(true)]
fn where_cluster_ips_are_allocated_what_nobody_has_is_dropped(#[case] v6: bool) {
    let a = Addresses::of(v6);
    let service = Service::cluster_ip("web", Protocol::TCP, a.cluster_ip, &[at(a.backend, 8080)]);
    let mut world = World::new(&[service]);
    let to = |world: &World, address, protocol| {
        let (from, to) = (at(a.pod, 40_000), at(address, 80));
        let packet = match protocol {
            Protocol::TCP => tcp(from, to, Tcp::Syn, b""),
            _ => udp(from, to, b"?"),
        };
        world.ingress(&packet).counter
    };
    assert_eq!(
        to(&world, a.other_cluster_ip, Protocol::TCP),
        Counter::Untouched
    );
    world.configure(|settings| {
        let ranges = ["172.30.0.0/16", "fd00:30::/112"].map(|range| range.parse());
        set_allocated(settings, &ranges.map(|range| range.expect("a range")));
    });
    for protocol in [Protocol::TCP, Protocol::UDP] {
        let dropped = to(&world, a.other_cluster_ip, protocol);
        assert_eq!(dropped, Counter::DroppedUnallocated, "{protocol:?}");
    }
    assert_eq!(
        to(&world, a.cluster_ip, Protocol::TCP),
        Counter::ForwardedNew
    );
    assert_eq!(
        to(&world, a.cluster_ip, Protocol::UDP),
        Counter::RejectedUnserved
    );
    assert_eq!(to(&world, a.outsider, Protocol::TCP), Counter::Untouched);
    // A segment in the middle of a connection may be another proxy's, which lives on.
    let ack = tcp(
        at(a.pod, 40_001),
        at(a.other_cluster_ip, 80),
        Tcp::Ack,
        b"data",
    );
    assert_eq!(world.ingress(&ack).counter, Counter::Untouched);
}

#[rstest]
#[case::v4(false)]
#[case::v6(true)]
fn source_ranges_guard_the_balancers_address_alone(#[case] v6: bool) {
    let a = Addresses::of(v6);
    let mut service =
        Service::cluster_ip("web", Protocol::TCP, a.cluster_ip, &[at(a.backend, 8080)]).with(
            Some(a.balancer),
            80,
            FrontendKind::LoadBalancer,
            ServiceFlags::SOURCE_RANGES,
        );
    service.sources = vec!["203.0.113.0/25", "2001:db8:113::/64"];
    let world = World::new(&[service]);
    let from = |client, address| {
        world
            .ingress(&tcp(at(client, 40_000), at(address, 80), Tcp::Syn, b""))
            .counter
    };
    assert_eq!(from(a.outsider, a.balancer), Counter::ForwardedNew);
    assert_eq!(from(a.pod, a.balancer), Counter::DroppedSource);
    assert_eq!(from(a.pod, a.cluster_ip), Counter::ForwardedNew);
}

#[rstest]
#[case::v4(false)]
#[case::v6(true)]
fn a_node_port_is_served_on_node_port_addresses_only(#[case] v6: bool) {
    let a = Addresses::of(v6);
    let service = Service::cluster_ip("web", Protocol::TCP, a.cluster_ip, &[at(a.backend, 8080)])
        .with(None, 30_080, FrontendKind::NodePort, 0);
    let world = World::new(&[service]);
    let to = |address| tcp(at(a.outsider, 40_000), at(address, 30_080), Tcp::Syn, b"");
    let served = world.ingress(&to(a.node));
    assert_eq!(
        (served.counter, served.marked),
        (Counter::ForwardedNew, true)
    );
    for address in [a.other_node_address, a.backend] {
        let outcome = world.ingress(&to(address));
        assert_eq!(
            (outcome.packet, outcome.counter),
            (to(address), Counter::Untouched)
        );
    }
}

#[rstest]
#[case::v4(false)]
#[case::v6(true)]
fn what_is_no_services_leaves_byte_for_byte_as_it_came(#[case] v6: bool) {
    let a = Addresses::of(v6);
    let world = World::new(&[Service::cluster_ip(
        "web",
        Protocol::TCP,
        a.cluster_ip,
        &[at(a.backend, 8080)],
    )]);
    for packet in [
        tcp(at(a.pod, 40_000), at(a.outsider, 443), Tcp::Syn, b""),
        tcp(at(a.pod, 40_000), at(a.outsider, 80), Tcp::Syn, b""),
        tcp(
            at(a.backend, 8080),
            at(a.outsider, 40_000),
            Tcp::Ack,
            b"data",
        ),
        udp(at(a.pod, 40_000), at(a.outsider, 53), b"?"),
        tcp(at(a.pod, 40_000), at(a.backend, 8080), Tcp::Syn, b""),
    ] {
        for outcome in [
            world.ingress(&packet),
            world.egress(&packet, false),
            world.egress(&packet, true),
        ] {
            assert_eq!((outcome.verdict, &outcome.packet), (NEXT, &packet));
            assert_eq!(outcome.counter, Counter::Untouched);
        }
    }
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
