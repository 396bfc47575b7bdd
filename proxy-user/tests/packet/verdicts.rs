// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which packets are forwarded, dropped or left untouched.

use std::net::IpAddr;

use config::{set_allocated, set_pods};
use proxy_common::{Counter, EndpointSet, FrontendKind, Protocol, ServiceFlags, Settings};
use rstest::rstest;

use crate::{
    packets::{Tcp, at, tcp, udp},
    service::{Addresses, Service},
    world::{LOOPBACK, NEXT, SHOT, World},
};

#[rstest]
fn local_policy_drops_outsiders_and_short_circuits_pods(#[values(false, true)] v6: bool) {
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
fn pods_may_be_told_by_the_interface_they_are_behind(#[values(false, true)] v6: bool) {
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
    // The interface is unknown, has no pods, has pods. The client's address does not matter.
    assert!(from(&world, a.pod, 1) && from(&world, a.outsider, 1));
    world.set_pods_behind(false);
    assert!(from(&world, a.pod, 2) && from(&world, a.outsider, 2));
    world.set_pods_behind(true);
    assert!(!from(&world, a.pod, 3) && !from(&world, a.outsider, 3));
}

#[rstest]
fn ranges_of_one_family_judge_no_packet_of_the_other(#[values(false, true)] with_range: bool) {
    let services = [false, true].map(|v6| {
        let name = if v6 { "web-v6" } else { "web-v4" };
        let a = Addresses::of(v6);
        Service::cluster_ip(name, Protocol::TCP, a.cluster_ip, &[at(a.backend, 8080)])
    });
    let mut world = World::new(&services);
    let range = if with_range {
        "fd00:40::/32"
    } else {
        "10.40.0.0/16"
    };
    let mut told = Settings::EMPTY;
    set_pods(&mut told, &[range.parse().expect("a range")]);
    world.configure(|settings| {
        settings.flags = told.flags;
        (settings.pods_v4, settings.pods_v6) = (told.pods_v4, told.pods_v6);
    });
    let is_masqueraded = |v6, client: fn(Addresses) -> IpAddr| {
        let a = Addresses::of(v6);
        let syn = tcp(at(client(a), 7), at(a.cluster_ip, 80), Tcp::Syn, b"");
        let outcome = world.ingress(&syn);
        assert_eq!(outcome.counter, Counter::ForwardedNew);
        outcome.marked
    };
    assert!(!is_masqueraded(with_range, |a| a.pod));
    assert!(is_masqueraded(with_range, |a| a.outsider));
    // KUBE: as without detectLocalMode.
    assert!(!is_masqueraded(!with_range, |a| a.pod));
    assert!(!is_masqueraded(!with_range, |a| a.outsider));
}

#[rstest]
fn where_cluster_ips_are_allocated_what_nobody_has_is_dropped(#[values(false, true)] v6: bool) {
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
    // A mid-stream segment may belong to another proxy, whose connections still exist.
    let ack = tcp(
        at(a.pod, 40_001),
        at(a.other_cluster_ip, 80),
        Tcp::Ack,
        b"data",
    );
    assert_eq!(world.ingress(&ack).counter, Counter::Untouched);
}

#[rstest]
fn source_ranges_guard_the_balancers_address_alone(#[values(false, true)] v6: bool) {
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
fn a_node_port_is_served_on_node_port_addresses_only(#[values(false, true)] v6: bool) {
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
fn what_is_no_services_leaves_byte_for_byte_as_it_came(#[values(false, true)] v6: bool) {
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

#[rstest]
fn frames_for_other_machines_begin_nothing_and_get_no_answer(#[values(false, true)] v6: bool) {
    let a = Addresses::of(v6);
    let web = Service::cluster_ip("web", Protocol::TCP, a.cluster_ip, &[at(a.backend, 8080)]);
    let none = Service::cluster_ip("none", Protocol::TCP, a.other_cluster_ip, &[]);
    let mut world = World::new(&[web, none]);
    // The link-layer address of the frame is not the interface's.
    world.set_interface(LOOPBACK, 0);
    for service in [a.cluster_ip, a.other_cluster_ip] {
        let mut packet = tcp(at(a.outsider, 40_000), at(service, 80), Tcp::Syn, b"");
        for mac in [[2, 0, 0, 0, 0, 7], [0xff; 6], [1, 0, 0x5e, 0, 0, 1]] {
            packet[..6].copy_from_slice(&mac);
            let outcome = world.ingress(&packet);
            assert_eq!(
                (outcome.verdict, outcome.counter),
                (NEXT, Counter::Untouched)
            );
            assert_eq!(outcome.packet, packet);
        }
        packet[..6].fill(0);
        assert_ne!(world.ingress(&packet).counter, Counter::Untouched);
    }
}

#[rstest]
#[case::v4("127.0.0.1")]
#[case::v6("::1")]
fn loopback_addresses_from_the_wire_are_not_served(#[case] loopback: IpAddr) {
    let a = Addresses::of(loopback.is_ipv6());
    let web = Service::cluster_ip("web", Protocol::TCP, a.cluster_ip, &[at(a.backend, 8080)]).with(
        None,
        30_080,
        FrontendKind::NodePort,
        0,
    );
    let mut world = World::new(&[web]);
    world.set_node_addresses(&[a.node, loopback]);
    for (from, to) in [
        (at(a.outsider, 40_000), at(loopback, 30_080)),
        (at(loopback, 40_000), at(a.node, 30_080)),
        (at(loopback, 40_000), at(a.cluster_ip, 80)),
    ] {
        let packet = tcp(from, to, Tcp::Syn, b"");
        let outcome = world.ingress(&packet);
        assert_eq!(
            (outcome.verdict, outcome.counter),
            (NEXT, Counter::Untouched),
            "{from} to {to}"
        );
        assert_eq!(outcome.packet, packet);
    }
    let served = world.ingress(&tcp(
        at(a.outsider, 40_000),
        at(a.node, 30_080),
        Tcp::Syn,
        b"",
    ));
    assert_eq!(served.counter, Counter::ForwardedNew);
}
