// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The traffic counts of backends and service ports: each number must be exact; and the shares of
//! new connections by the weights of backends, which they show.

use std::{collections::BTreeSet, net::SocketAddr};

use proxy_common::{Counter, FrontendKind, Protocol, traffic::Traffic};
use rstest::rstest;

use crate::{
    packets::{Tcp, at, tcp, udp},
    service::{Addresses, IPV4, IPV6, Service},
    world::{NEXT, World},
};

const LINK_LAYER: usize = 14;

/// The traffic counted for a backend.
fn of(world: &World, backend: SocketAddr) -> Traffic {
    let counted = world.counted();
    let mut found = counted.backends.iter().filter(|one| one.address == backend);
    let one = found.next().expect("it is counted");
    assert!(found.next().is_none(), "{counted:?}");
    Traffic {
        generation: 0,
        ..one.traffic
    }
}

/// What is counted for a backend beside bytes and replies.
fn begun(world: &World, backend: SocketAddr) -> [u64; 5] {
    let traffic = of(world, backend);
    [
        traffic.connections,
        traffic.packets_in,
        traffic.affinity_hits,
        traffic.retransmitted,
        traffic.unanswered,
    ]
}

/// The number of bytes in packets, from the IP header on.
fn bytes(packets: &[Vec<u8>]) -> u64 {
    let of_one = |packet: &Vec<u8>| (packet.len() - LINK_LAYER) as u64;
    packets.iter().map(of_one).sum()
}

#[rstest]
fn packets_and_bytes_of_each_direction_are_counted_once(
    #[values(*IPV4, *IPV6)] a: Addresses,
    #[values(false, true)] masqueraded: bool,
) {
    let world = World::new(&[Service::web(a)]);
    let client = at(if masqueraded { a.outsider } else { a.pod }, 40_000);
    let (service, backend) = (a.service(), a.endpoint());
    let sent = [
        tcp(client, service, Tcp::Syn, b""),
        tcp(client, service, Tcp::Ack, b"question"),
        tcp(client, service, Tcp::Ack, b"and another"),
    ];
    let mut source = client;
    for packet in &sent {
        source = world.forward(packet).src();
    }
    assert_eq!(source == client, !masqueraded);
    let answers = [
        tcp(backend, source, Tcp::SynAck, b""),
        tcp(backend, source, Tcp::Ack, b"an answer that is longer"),
    ];
    for packet in &answers {
        let out = world.forward(packet);
        assert_eq!(out.dst(), client);
    }
    let expected = Traffic {
        packets_in: 3,
        bytes_in: bytes(&sent),
        packets_out: 2,
        bytes_out: bytes(&answers),
        connections: 1,
        ..Traffic::default()
    };
    assert_eq!(of(&world, backend), expected);
    assert_eq!(world.counted().others, Traffic::default());
    assert!(world.counted().refused.is_empty());
}

#[rstest]
fn repeated_and_unanswered_syns_are_counted(#[values(*IPV4, *IPV6)] a: Addresses) {
    let world = World::new(&[Service::web(a)]);
    let (client, service, backend) = a.ends();
    let syn = tcp(client, service, Tcp::Syn, b"");
    world.ingress(&syn);
    assert_eq!(begun(&world, backend), [1, 1, 0, 0, 0]);
    world.ingress(&syn);
    assert_eq!(begun(&world, backend), [1, 2, 0, 1, 1]);
    world.egress(&tcp(backend, client, Tcp::SynAck, b""));
    world.ingress(&syn);
    let lost = begun(&world, backend);
    assert_eq!(lost, [1, 3, 0, 2, 1], "the answer was lost");
    world.ingress(&tcp(client, service, Tcp::Rst, b""));
    world.ingress(&syn);
    let another = begun(&world, backend);
    assert_eq!(another, [2, 5, 0, 2, 1], "another connection");

    // The second repetition goes elsewhere, and counts as unanswered by the first backend.
    let world = World::new(&[Service::web(a).backed_by(&a.endpoints())]);
    let sent = [(); 3].map(|()| world.ingress(&syn));
    assert_eq!(sent[2].counter, Counter::ForwardedElsewhere);
    assert_eq!(begun(&world, sent[0].dst()), [1, 2, 0, 2, 2]);
    assert_eq!(begun(&world, sent[2].dst()), [1, 1, 0, 0, 0]);
}

#[rstest]
fn a_backend_from_affinity_is_counted_as_an_affinity_hit(#[values(*IPV4, *IPV6)] a: Addresses) {
    let mut service = Service::over(Protocol::UDP, a);
    service.affinity = 60;
    let world = World::new(&[service]);
    for port in [40_000, 40_001, 40_002] {
        world.ingress(&udp(at(a.pod, port), a.service(), b"?"));
        world.ingress(&udp(at(a.pod, port), a.service(), b"?"));
    }
    assert_eq!(begun(&world, a.endpoint()), [3, 6, 2, 0, 0]);
}

#[rstest]
fn refused_packets_are_counted_by_service_port_and_reason(#[values(*IPV4, *IPV6)] a: Addresses) {
    use Counter::{DroppedSource, RejectedNoEndpoint, RejectedUnknownFlow};
    let empty = Service::cluster_ip("empty", Protocol::TCP, a.cluster_ip, &[]);
    let backends = [at(a.other_backend, 8080)];
    let mut limited = Service::cluster_ip("limited", Protocol::TCP, a.other_cluster_ip, &backends);
    limited = limited.served_at(FrontendKind::LoadBalancer, at(a.balancer, 80));
    let ranges = ["192.0.2.0/24", "2001:db8:2::/64"];
    limited.sources = ranges.map(|range| range.parse().expect("a range")).to_vec();
    let world = World::new(&[empty, limited]);
    let other = a.other_cluster_ip;
    let expected = [
        ("empty", a.cluster_ip, Tcp::Syn, RejectedNoEndpoint, 3),
        ("limited", a.balancer, Tcp::Syn, DroppedSource, 2),
        ("limited", other, Tcp::Ack, RejectedUnknownFlow, 1),
    ];
    for (_, address, flags, counter, times) in expected {
        for _ in 0..times {
            let out = world.ingress(&tcp(a.outside_client(), at(address, 80), flags, b""));
            assert_eq!(out.counter, counter);
        }
    }
    let ports = world.reader().into_service_ports();
    let refused = world.counted().refused.into_iter();
    let refused = refused.map(|(id, counter, count)| (ports[&id].service.clone(), counter, count));
    let expected = expected.map(|(name, .., kind, times)| (format!("test/{name}"), kind, times));
    assert_eq!(BTreeSet::from_iter(refused), BTreeSet::from(expected));
}

#[test]
fn a_backend_with_a_reused_id_does_not_count_connections_of_the_old_one() {
    let a = *IPV4;
    let (old, new) = (a.endpoint(), at(a.other_backend, 8080));
    let web = |backend| Service::web(a).backed_by(&[backend]);
    let mut world = World::new(&[web(old)]);
    let id = |world: &World| world.counted().backends[0].backend_id;
    let (client, service) = (a.client(), a.service());
    world.ingress(&tcp(client, service, Tcp::Syn, b""));
    let first = id(&world);
    world.remove("web");
    // An id is used again once no program can be reading its old element.
    for _ in 0..100 {
        world.apply(&web(new));
        if id(&world) == first {
            break;
        }
        world.remove("web");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(id(&world), first);
    assert_eq!(of(&world, new), Traffic::default());
    let before = world.counted().others;
    let packet = tcp(client, service, Tcp::Ack, b"more");
    assert_eq!(world.ingress(&packet).dst(), old);
    assert_eq!(of(&world, new), Traffic::default());
    let others = world.counted().others;
    assert_eq!(others.packets_in - before.packets_in, 1);
    assert_eq!(others.bytes_in - before.bytes_in, bytes(&[packet]));
}

/// What weight 0 leaves to a backend stands in tests/fuzz/cases/weights.txt.
#[rstest]
fn of_100_000_connections_each_backend_gets_its_share_within_2_percent(
    #[values(*IPV4, *IPV6)] a: Addresses,
    #[values(false, true)] is_maglev: bool,
) {
    const CONNECTIONS: u32 = 100_000;
    const PORTS: u32 = 50_000;
    let weights = [256, 0, 100, 44];
    let backends = [a.backend, a.other_backend].map(|pod| [at(pod, 8080), at(pod, 8081)]);
    let mut service = Service::web(a).backed_by(backends.as_flattened());
    for (backend, weight) in service.backends.iter_mut().zip(weights) {
        backend.weight = weight;
    }
    service.is_maglev = is_maglev;
    let world = World::with(|options| options.capacities.slots = 8192, &[service]);
    let mut refused = 0;
    for n in 0..CONNECTIONS {
        let client = if n < PORTS { a.pod } else { a.outsider };
        let client = at(client, (10_000 + n % PORTS) as u16);
        let syn = tcp(client, a.service(), Tcp::Syn, b"");
        refused += u32::from(world.ingress_quietly(&syn) != NEXT);
    }
    // One in 30 million finds its hash taken by another flow in the same sets.
    assert!(refused <= 2, "{refused}");
    for (backend, weight) in backends.as_flattened().iter().zip(weights) {
        let share = of(&world, *backend).connections as f64 / f64::from(CONNECTIONS);
        let wanted = f64::from(weight) / 400.0;
        assert!((share - wanted).abs() < 0.02, "{backend}: {share}");
        assert_eq!(weight == 0, share == 0.0, "{backend}: {share}");
    }
}
