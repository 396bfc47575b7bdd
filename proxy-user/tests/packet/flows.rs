// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How flows begin, share ports and backends, and end.

use std::{collections::BTreeSet, net::SocketAddr};

use proxy_common::{Counter, Protocol, masquerade::PortRanges};
use rstest::rstest;

use crate::{
    packets::{Tcp, at, packet_over, tcp, udp},
    service::{Addresses, IPV4, IPV6, Service},
    world::World,
};

#[rstest]
fn masqueraded_connections_never_share_a_source_port(#[values(IPV4, IPV6)] a: Addresses) {
    let mut world = World::new(&[Service::web(a)]);
    // There are hardly more ports than clients: the search must find the free ones.
    world.configure(|settings| settings.masquerade_ports = PortRanges([5000, 5009, 0, 0]));
    let sources: BTreeSet<_> = (0..8)
        .map(|n| {
            let client = at(a.outsider, 40_000 + n);
            let out = world.forward(&tcp(client, a.service(), Tcp::Syn, b""));
            assert_eq!(out.counter, Counter::Masqueraded);
            out.src().port()
        })
        .collect();
    assert_eq!(sources.len(), 8);
    assert!(sources.iter().all(|port| (5000..=5009).contains(port)));
}

#[rstest]
fn a_client_port_to_two_frontends_of_one_backend_is_translated_for_the_second(
    #[values(IPV4, IPV6)] a: Addresses,
) {
    let backend = a.endpoint();
    let other = Service::cluster_ip("other", Protocol::UDP, a.other_cluster_ip, &[backend]);
    let first = Service::cluster_ip("first", Protocol::UDP, a.cluster_ip, &[backend]);
    let world = World::new(&[first, other]);
    let client = a.client();
    for service in [a.cluster_ip, a.other_cluster_ip].map(|address| at(address, 80)) {
        let inside = world.ingress(&udp(client, service, b"ping"));
        let as_seen = inside.src();
        assert_eq!(as_seen.ip(), client.ip());
        // Only the second is translated.
        assert_eq!(as_seen == client, service == a.service());
        let answer = world.egress(&udp(backend, as_seen, b"pong"), false);
        assert_eq!(answer.ends(), (service, client));
    }
}

#[rstest]
fn udp_flows_leave_a_backend_that_stops_serving_and_tcp_connections_stay(
    #[values(IPV4, IPV6)] a: Addresses,
) {
    let (old, new) = (at(a.backend, 53), at(a.other_backend, 53));
    for protocol in [Protocol::UDP, Protocol::TCP] {
        let service = |backend| Service::cluster_ip("dns", protocol, a.cluster_ip, &[backend]);
        let mut world = World::new(&[service(old)]);
        let send = |world: &World, begin: Tcp| {
            let (client, dst) = (a.client(), a.service());
            let packet = packet_over(protocol, client, dst, begin);
            let outcome = world.ingress(&packet);
            (outcome.dst(), outcome.counter)
        };
        assert_eq!(send(&world, Tcp::Syn), (old, Counter::ForwardedNew));
        world.apply(&service(new));
        let gone = (a.service(), Counter::Untouched);
        let (expected, at_last) = match protocol {
            Protocol::UDP => ((new, Counter::ForwardedNew), gone),
            _ => ((old, Counter::ForwardedHit), (old, Counter::ForwardedHit)),
        };
        assert_eq!(send(&world, Tcp::Ack), expected);
        world.remove("dns");
        assert_eq!(send(&world, Tcp::Ack), at_last);
    }
}

#[rstest]
fn a_syn_begins_a_new_flow_on_a_closed_one_but_not_on_a_half_open_one(
    #[values(IPV4, IPV6)] a: Addresses,
) {
    let world = World::new(&[Service::web(a)]);
    let (client, service, backend) = a.ends();
    let syn = tcp(client, service, Tcp::Syn, b"");
    assert_eq!(world.ingress(&syn).counter, Counter::ForwardedNew);
    let again = world.ingress(&syn);
    assert_eq!(again.counter, Counter::ForwardedHit);
    world.egress(&tcp(backend, client, Tcp::SynAck, b""), false);
    world.ingress(&tcp(client, service, Tcp::Fin, b""));
    world.egress(&tcp(backend, client, Tcp::Fin, b""), false);
    assert_eq!(world.flows()[0].state, "closed");
    assert_eq!(world.ingress(&syn).counter, Counter::ForwardedNew);
    assert_eq!(world.flows().len(), 1);
}

#[rstest]
fn all_frontends_share_a_clients_affinity_until_its_backend_is_removed(
    #[values(IPV4, IPV6)] a: Addresses,
) {
    let backends = a.endpoints();
    let service = |backends: &[SocketAddr]| {
        let mut service =
            Service::cluster_ip("seat", Protocol::TCP, a.cluster_ip, backends).at_balancer(a, 0);
        service.affinity = 60;
        service
    };
    let mut world = World::new(&[service(&backends)]);
    let mut port = 40_000;
    let mut reach = |world: &World, address| {
        port += 1;
        world
            .ingress(&tcp(at(a.pod, port), at(address, 80), Tcp::Syn, b""))
            .dst()
    };
    let held = reach(&world, a.cluster_ip);
    for _ in 0..20 {
        assert_eq!(reach(&world, a.cluster_ip), held);
        assert_eq!(reach(&world, a.balancer), held);
    }
    let left: Vec<_> = backends
        .into_iter()
        .filter(|backend| *backend != held)
        .collect();
    world.apply(&service(&left));
    assert_eq!(reach(&world, a.cluster_ip), left[0]);
    world.apply(&service(&backends));
    assert_eq!(
        reach(&world, a.cluster_ip),
        left[0],
        "and held to the new one"
    );
}

#[rstest]
fn without_affinity_every_backend_is_reached(#[values(IPV4, IPV6)] a: Addresses) {
    let backends = a.endpoints();
    let world = World::new(&[Service::web(a).backed_by(&backends)]);
    let reached: BTreeSet<_> = (0..64)
        .map(|n| {
            let packet = tcp(at(a.pod, 40_000 + n), a.service(), Tcp::Syn, b"");
            world.ingress(&packet).dst()
        })
        .collect();
    assert_eq!(reached, backends.into());
}

/// The answers would be taken for requests to that node port.
#[rstest]
fn a_flow_is_never_masqueraded_with_the_number_of_a_node_port(#[values(IPV4, IPV6)] a: Addresses) {
    let world = World::new(&[Service::over(Protocol::UDP, a).at_node_port(8444)]);
    let out = |port| world.forward(&udp(at(a.outsider, port), at(a.node, 8444), b"?"));
    for (own, is_kept) in [(8443, true), (8444, false)] {
        let source = out(own).src();
        assert_eq!((source.ip(), source.port() == own), (a.node, is_kept));
    }
}
