// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which packets are forwarded, dropped or left untouched.

use std::net::IpAddr;

use config::{set_allocated, set_pods};
use proxy_common::{Counter, EndpointSet, Protocol, ServiceFlags, Settings};
use rstest::rstest;

use crate::{
    packets::{Tcp, at, packet_over, tcp, udp},
    service::{Addresses, IPV4, IPV6, Service},
    world::{LOOPBACK, SHOT, World},
};

#[rstest]
fn local_policy_drops_outsiders_and_short_circuits_pods(#[values(IPV4, IPV6)] a: Addresses) {
    let local = ServiceFlags::EXTERNAL_LOCAL | ServiceFlags::EXTERNAL_BLOCK_LOCAL;
    let mut service = Service::cluster_ip("edge", Protocol::TCP, a.cluster_ip, &[a.endpoint()])
        .at_balancer(a, local);
    let mut world = World::new(&[]);
    world.apply(&service);
    let from = |world: &World, client, port| {
        world.ingress(&tcp(at(client, port), at(a.balancer, 80), Tcp::Syn, b""))
    };
    let dropped = from(&world, a.outsider, 1);
    assert_eq!(dropped.fate(), (SHOT, Counter::DroppedNoLocalEndpoint));
    let pod = from(&world, a.pod, 1);
    assert_eq!((pod.counter, pod.marked), (Counter::ForwardedNew, false));
    let host = from(&world, a.node, 1);
    assert_eq!((host.counter, host.marked), (Counter::ForwardedNew, true));

    service.backends[0].1 = EndpointSet::CLUSTER.union(EndpointSet::LOCAL);
    world.apply(&service);
    let outsider = from(&world, a.outsider, 2);
    let fate = (outsider.counter, outsider.marked);
    assert_eq!(fate, (Counter::ForwardedNew, false));
}

#[rstest]
fn pods_can_be_detected_by_interface_instead_of_address(#[values(IPV4, IPV6)] a: Addresses) {
    let mut world = World::new(&[Service::web(a)]);
    world.configure(|settings| settings.flags |= Settings::PODS_BY_INTERFACE);
    let from = |world: &World, client, port| {
        let syn = tcp(at(client, port), a.service(), Tcp::Syn, b"");
        let outcome = world.ingress(&syn);
        assert_eq!(outcome.counter, Counter::ForwardedNew);
        outcome.marked
    };
    // The interface is unknown, has no pods, has pods. The client's address does not matter.
    assert!(from(&world, a.pod, 1) && from(&world, a.outsider, 1));
    world.set_pods_behind(false);
    assert!(from(&world, a.pod, 2) && from(&world, a.outsider, 2));
    world.set_pods_behind(true);
    assert!(!from(&world, a.pod, 3) && !from(&world, a.outsider, 3));
}

#[rstest]
#[case::v4("10.40.0.0/16", IPV4, IPV6)]
#[case::v6("fd00:40::/32", IPV6, IPV4)]
fn pod_ranges_of_one_family_masquerade_no_client_of_the_other(
    #[case] range: &str,
    #[case] own: Addresses,
    #[case] other: Addresses,
) {
    let services = [("own", own), ("other", other)]
        .map(|(name, a)| Service::cluster_ip(name, Protocol::TCP, a.cluster_ip, &[a.endpoint()]));
    let mut world = World::new(&services);
    let mut told = Settings::EMPTY;
    set_pods(&mut told, &[range.parse().expect("a range")]);
    world.configure(|settings| {
        settings.flags = told.flags;
        (settings.pods_v4, settings.pods_v6) = (told.pods_v4, told.pods_v6);
    });
    let is_masqueraded = |a: Addresses, client| {
        let syn = tcp(at(client, 7), a.service(), Tcp::Syn, b"");
        let outcome = world.ingress(&syn);
        assert_eq!(outcome.counter, Counter::ForwardedNew);
        outcome.marked
    };
    assert!(!is_masqueraded(own, own.pod));
    assert!(is_masqueraded(own, own.outsider));
    // KUBE: as without detectLocalMode.
    assert!(!is_masqueraded(other, other.pod));
    assert!(!is_masqueraded(other, other.outsider));
}

#[rstest]
fn new_connections_to_unallocated_cluster_ips_are_dropped(#[values(IPV4, IPV6)] a: Addresses) {
    let mut world = World::new(&[Service::web(a)]);
    let expect = |world: &World, address, protocol, counter| {
        let packet = packet_over(protocol, a.client(), at(address, 80), Tcp::Syn);
        assert_eq!(world.ingress(&packet).counter, counter, "{protocol:?}");
    };
    let (tcp, udp) = (Protocol::TCP, Protocol::UDP);
    expect(&world, a.other_cluster_ip, tcp, Counter::Untouched);
    world.configure(|settings| {
        let ranges = ["172.30.0.0/16", "fd00:30::/112"].map(|range| range.parse());
        set_allocated(settings, &ranges.map(|range| range.expect("a range")));
    });
    for (address, protocol, counter) in [
        (a.other_cluster_ip, tcp, Counter::DroppedUnallocated),
        (a.other_cluster_ip, udp, Counter::DroppedUnallocated),
        (a.cluster_ip, tcp, Counter::ForwardedNew),
        (a.cluster_ip, udp, Counter::RejectedUnserved),
        (a.outsider, tcp, Counter::Untouched),
    ] {
        expect(&world, address, protocol, counter);
    }
    // A mid-stream segment may belong to another proxy, whose connections still exist.
    let unallocated = at(a.other_cluster_ip, 80);
    let ack = crate::packets::tcp(at(a.pod, 40_001), unallocated, Tcp::Ack, b"data");
    assert_eq!(world.ingress(&ack).counter, Counter::Untouched);
}

#[rstest]
fn source_ranges_apply_to_load_balancer_ips_only(#[values(IPV4, IPV6)] a: Addresses) {
    let mut service = Service::web(a).at_balancer(a, ServiceFlags::SOURCE_RANGES);
    service.sources = vec!["203.0.113.0/25", "2001:db8:113::/64"];
    let world = World::new(&[service]);
    let from = |client, address| {
        let syn = tcp(at(client, 40_000), at(address, 80), Tcp::Syn, b"");
        world.ingress(&syn).counter
    };
    assert_eq!(from(a.outsider, a.balancer), Counter::ForwardedNew);
    assert_eq!(from(a.pod, a.balancer), Counter::DroppedSource);
    assert_eq!(from(a.pod, a.cluster_ip), Counter::ForwardedNew);
}

#[rstest]
fn a_node_port_is_served_on_node_port_addresses_only(#[values(IPV4, IPV6)] a: Addresses) {
    let service = Service::web(a).at_node_port(30_080);
    let world = World::new(&[service]);
    let to = |address| tcp(a.outside_client(), at(address, 30_080), Tcp::Syn, b"");
    let served = world.ingress(&to(a.node));
    let fate = (served.counter, served.marked);
    assert_eq!(fate, (Counter::ForwardedNew, true));
    for address in [a.other_node_address, a.backend] {
        world.expect_untouched(&to(address));
    }
}

#[rstest]
fn packets_of_no_service_pass_unchanged(#[values(IPV4, IPV6)] a: Addresses) {
    let world = World::new(&[Service::web(a)]);
    for packet in [
        tcp(a.client(), at(a.outsider, 443), Tcp::Syn, b""),
        tcp(a.client(), at(a.outsider, 80), Tcp::Syn, b""),
        tcp(a.endpoint(), a.outside_client(), Tcp::Ack, b"data"),
        udp(a.client(), at(a.outsider, 53), b"?"),
        tcp(a.client(), a.endpoint(), Tcp::Syn, b""),
    ] {
        for outcome in [
            world.ingress(&packet),
            world.egress(&packet, false),
            world.egress(&packet, true),
        ] {
            outcome.expect_untouched(&packet);
        }
    }
}

#[rstest]
fn frames_to_other_link_layer_addresses_pass_unchanged(#[values(IPV4, IPV6)] a: Addresses) {
    let web = Service::web(a);
    let none = Service::cluster_ip("none", Protocol::TCP, a.other_cluster_ip, &[]);
    let mut world = World::new(&[web, none]);
    // The link-layer address of the frame is not the interface's.
    world.set_interface(LOOPBACK, 0);
    for service in [a.cluster_ip, a.other_cluster_ip] {
        let mut packet = tcp(a.outside_client(), at(service, 80), Tcp::Syn, b"");
        for mac in [[2, 0, 0, 0, 0, 7], [0xff; 6], [1, 0, 0x5e, 0, 0, 1]] {
            packet[..6].copy_from_slice(&mac);
            world.expect_untouched(&packet);
        }
        packet[..6].fill(0);
        assert_ne!(world.ingress(&packet).counter, Counter::Untouched);
    }
}

#[rstest]
#[case::v4(IPV4, "127.0.0.1")]
#[case::v6(IPV6, "::1")]
fn loopback_addresses_from_the_wire_are_not_served(#[case] a: Addresses, #[case] loopback: IpAddr) {
    let web = Service::web(a).at_node_port(30_080);
    let mut world = World::new(&[web]);
    world.set_node_addresses(&[a.node, loopback]);
    for (from, to) in [
        (a.outside_client(), at(loopback, 30_080)),
        (at(loopback, 40_000), at(a.node, 30_080)),
        (at(loopback, 40_000), a.service()),
    ] {
        let packet = tcp(from, to, Tcp::Syn, b"");
        world.expect_untouched(&packet);
    }
    let served = world.ingress(&tcp(a.outside_client(), at(a.node, 30_080), Tcp::Syn, b""));
    assert_eq!(served.counter, Counter::ForwardedNew);
}

/// A virtual machine on the node's bridge that uses another node's load balancer, for example.
#[rstest]
fn a_frame_at_a_bridges_port_to_another_machine_begins_nothing(#[values(IPV4, IPV6)] a: Addresses) {
    let mut world = World::new(&[Service::web(a)]);
    let syn = |port| tcp(at(a.outsider, port), a.service(), Tcp::Syn, b"");
    let mut frame = syn(1);
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 7, 7]);
    world.expect_untouched(&frame);
    assert_eq!(world.ingress(&syn(2)).counter, Counter::ForwardedNew);
    // Now the node has such an interface.
    world.set_macs(&[[2, 0, 0, 0, 7, 7]]);
    assert_eq!(world.ingress(&frame).counter, Counter::ForwardedNew);
}
