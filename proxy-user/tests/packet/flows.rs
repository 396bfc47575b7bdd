// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How flows begin, share ports and backends, and end.

use std::{collections::BTreeSet, net::SocketAddr};

use proxy_common::{Counter, FrontendKind, Protocol, masquerade::PortRanges};
use rstest::rstest;

use crate::{
    packets::{Tcp, at, seen, tcp, udp},
    service::{Addresses, Service},
    world::World,
};

#[rstest]
fn masqueraded_clients_with_one_port_never_share_a_source(#[values(false, true)] v6: bool) {
    let a = Addresses::of(v6);
    let mut world = World::new(&[Service::web(a)]);
    // There are hardly more ports than clients: the search must find the free ones.
    world.configure(|settings| settings.masquerade_ports = PortRanges([5000, 5009, 0, 0]));
    let sources: BTreeSet<_> = (0..8)
        .map(|n| {
            let client = at(a.outsider, 40_000 + n);
            let out = world.forward(&tcp(client, at(a.cluster_ip, 80), Tcp::Syn, b""));
            assert_eq!(out.counter, Counter::Masqueraded);
            seen(&out.packet).src.port()
        })
        .collect();
    assert_eq!(sources.len(), 8);
    assert!(sources.iter().all(|port| (5000..=5009).contains(port)));
}

#[rstest]
fn two_frontends_with_one_backend_translate_the_port_of_a_client_that_uses_one_port(
    #[values(false, true)] v6: bool,
) {
    let a = Addresses::of(v6);
    let backend = at(a.backend, 8080);
    let other = Service::cluster_ip("other", Protocol::UDP, a.other_cluster_ip, &[backend]);
    let first = Service::cluster_ip("first", Protocol::UDP, a.cluster_ip, &[backend]);
    let world = World::new(&[first, other]);
    let client = at(a.pod, 40_000);
    for service in [a.cluster_ip, a.other_cluster_ip].map(|address| at(address, 80)) {
        let inside = world.ingress(&udp(client, service, b"ping"));
        let as_seen = seen(&inside.packet).src;
        assert_eq!(as_seen.ip(), client.ip());
        assert_eq!(
            as_seen == client,
            service.ip() == a.cluster_ip,
            "only the second is translated"
        );
        let answer = world.egress(&udp(backend, as_seen, b"pong"), false);
        assert_eq!(
            (seen(&answer.packet).src, seen(&answer.packet).dst),
            (service, client)
        );
    }
}

#[rstest]
fn a_datagrams_flow_leaves_a_backend_that_stops_serving_and_a_connection_stays(
    #[values(false, true)] v6: bool,
) {
    let a = Addresses::of(v6);
    let (old, new) = (at(a.backend, 53), at(a.other_backend, 53));
    for protocol in [Protocol::UDP, Protocol::TCP] {
        let service = |backend| Service::cluster_ip("dns", protocol, a.cluster_ip, &[backend]);
        let mut world = World::new(&[service(old)]);
        let send = |world: &World, begin: Tcp| {
            let (client, dst) = (at(a.pod, 40_000), at(a.cluster_ip, 80));
            let packet = if protocol == Protocol::UDP {
                udp(client, dst, b"?")
            } else {
                tcp(client, dst, begin, b"")
            };
            let outcome = world.ingress(&packet);
            (seen(&outcome.packet).dst, outcome.counter)
        };
        assert_eq!(send(&world, Tcp::Syn), (old, Counter::ForwardedNew));
        world.apply(&service(new));
        let expected = if protocol == Protocol::UDP {
            (new, Counter::ForwardedNew)
        } else {
            (old, Counter::ForwardedHit)
        };
        assert_eq!(send(&world, Tcp::Ack), expected);
        world.remove("dns");
        let last = send(&world, Tcp::Ack);
        let gone = (at(a.cluster_ip, 80), Counter::Untouched);
        assert_eq!(
            last,
            if protocol == Protocol::UDP {
                gone
            } else {
                expected
            }
        );
    }
}

#[rstest]
fn a_syn_begins_anew_only_on_a_flow_that_is_closing(#[values(false, true)] v6: bool) {
    let a = Addresses::of(v6);
    let world = World::new(&[Service::web(a)]);
    let (client, service, backend) = (at(a.pod, 40_000), at(a.cluster_ip, 80), at(a.backend, 8080));
    let syn = tcp(client, service, Tcp::Syn, b"");
    assert_eq!(world.ingress(&syn).counter, Counter::ForwardedNew);
    assert_eq!(
        world.ingress(&syn).counter,
        Counter::ForwardedHit,
        "sent again"
    );
    world.egress(&tcp(backend, client, Tcp::SynAck, b""), false);
    world.ingress(&tcp(client, service, Tcp::Fin, b""));
    world.egress(&tcp(backend, client, Tcp::Fin, b""), false);
    assert_eq!(world.flows()[0].state, "closed");
    assert_eq!(world.ingress(&syn).counter, Counter::ForwardedNew);
    assert_eq!(world.flows().len(), 1);
}

#[rstest]
fn a_client_is_held_to_its_backend_by_every_frontend_until_that_is_gone(
    #[values(false, true)] v6: bool,
) {
    let a = Addresses::of(v6);
    let backends = [at(a.backend, 8080), at(a.other_backend, 8080)];
    let service =
        |backends: &[SocketAddr]| {
            let mut service = Service::cluster_ip("seat", Protocol::TCP, a.cluster_ip, backends)
                .with(Some(a.balancer), 80, FrontendKind::LoadBalancer, 0);
            service.affinity = 60;
            service
        };
    let mut world = World::new(&[service(&backends)]);
    let mut port = 40_000;
    let mut reach = |world: &World, address| {
        port += 1;
        seen(
            &world
                .ingress(&tcp(at(a.pod, port), at(address, 80), Tcp::Syn, b""))
                .packet,
        )
        .dst
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
fn without_affinity_every_backend_is_reached(#[values(false, true)] v6: bool) {
    let a = Addresses::of(v6);
    let backends = [at(a.backend, 8080), at(a.other_backend, 8080)];
    let world = World::new(&[Service::cluster_ip(
        "web",
        Protocol::TCP,
        a.cluster_ip,
        &backends,
    )]);
    let reached: BTreeSet<_> = (0..64)
        .map(|n| {
            let packet = tcp(at(a.pod, 40_000 + n), at(a.cluster_ip, 80), Tcp::Syn, b"");
            seen(&world.ingress(&packet).packet).dst
        })
        .collect();
    assert_eq!(reached, backends.into());
}
