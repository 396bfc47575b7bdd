// SPDX-License-Identifier: Apache-2.0 OR MIT
//! First packets of unusual frames and settings. The usual ones stand in
//! tests/fuzz/cases/first-packets.txt.

use std::net::IpAddr;

use config::set_pods;
use proxy_common::{Counter, Protocol, Settings};
use rstest::rstest;

use crate::{
    packets::{Tcp, at, tcp},
    service::{Addresses, IPV4, IPV6, Service},
    world::{LOOPBACK, World},
};

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
