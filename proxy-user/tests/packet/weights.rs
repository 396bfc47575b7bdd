// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Weights of backends on the packet path: shares of new connections, and what weight 0 leaves.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use proxy_common::{Counter, Protocol, ServiceFlags};
use rstest::rstest;

use crate::{
    connection::Connection,
    packets::{Tcp, at, packet_over, tcp},
    service::{Addresses, IPV4, IPV6, Service},
    world::{NEXT, REDIRECT, World},
};

/// A service with four backends of these weights, at its cluster IP.
fn service(a: Addresses, protocol: Protocol, is_maglev: bool, weights: &[u32]) -> Service {
    let backends = [a.backend, a.other_backend].map(|pod| [at(pod, 8080), at(pod, 8081)]);
    let mut service = Service::over(protocol, a)
        .backed_by(backends.as_flattened())
        .weighted(weights);
    if is_maglev {
        service.frontends[0].3 = ServiceFlags::MAGLEV;
    }
    service
}

fn world(service: &Service) -> World {
    let mut world = World::with(|options| options.capacities.slots = 8192, &[]);
    world.apply(service);
    world
}

/// Returns the client of this number, in the pod's subnet: another one for each number.
fn client(a: Addresses, n: u32) -> SocketAddr {
    const PORTS: u32 = 50_000;
    let last = 20 + n / PORTS;
    let address = match a.pod {
        IpAddr::V4(pod) => IpAddr::from(Ipv4Addr::from_bits(pod.to_bits() & !255 | last)),
        IpAddr::V6(pod) => {
            IpAddr::from(Ipv6Addr::from_bits(pod.to_bits() & !255 | u128::from(last)))
        }
    };
    SocketAddr::new(address, (10_000 + n % PORTS) as u16)
}

#[rstest]
fn of_100_000_connections_each_backend_gets_its_share_within_2_percent(
    #[values(IPV4, IPV6)] a: Addresses,
    #[values(false, true)] is_maglev: bool,
) {
    const CONNECTIONS: u32 = 100_000;
    let weights = [256, 0, 100, 44];
    let protocol = Protocol::TCP;
    let service = service(a, protocol, is_maglev, &weights);
    let world = world(&service);
    for n in 0..CONNECTIONS {
        let syn = packet_over(protocol, client(a, n), a.service(), Tcp::Syn);
        assert_eq!(world.ingress_quietly(&syn), NEXT);
    }
    let counted = world.counted().backends.into_iter();
    let connections: BTreeMap<_, _> = counted
        .map(|backend| (backend.address, backend.traffic.connections))
        .collect();
    for ((backend, _), weight) in service.backends.iter().zip(weights) {
        let share = connections[backend] as f64 / f64::from(CONNECTIONS);
        let wanted = f64::from(weight) / 400.0;
        assert!((share - wanted).abs() < 0.02, "{backend}: {share}");
        assert_eq!(weight == 0, share == 0.0, "{backend}: {share}");
    }
}

#[rstest]
fn a_connection_goes_on_when_its_backend_gets_weight_0(
    #[values(IPV4, IPV6)] a: Addresses,
    #[values(false, true)] is_maglev: bool,
) {
    let of = |weights: &[u32]| service(a, Protocol::TCP, is_maglev, weights);
    let mut world = world(&of(&[1, 0, 0, 0]));
    let own = Connection::new(a).establish(&world);
    assert_eq!(own.backend, a.endpoint());
    for (port, weights) in [(50_000, [0, 1, 1, 0]), (50_001, [0, 0, 0, 0])] {
        world.apply(&of(&weights));
        let sent = own.client_sends(&world, Tcp::Ack, (101, 7001));
        assert_eq!(
            (sent.counter, sent.dst()),
            (Counter::ForwardedHit, own.backend)
        );
        let syn = tcp(at(a.pod, port), a.service(), Tcp::Syn, b"");
        let new = world.ingress(&syn);
        if weights.contains(&1) {
            assert_eq!(new.counter, Counter::ForwardedNew);
            assert_ne!(new.dst(), own.backend);
        } else {
            assert_eq!(new.fate(), (REDIRECT, Counter::RejectedNoEndpoint));
        }
    }
}

#[rstest]
fn datagrams_and_clients_with_affinity_stay_with_a_backend_of_weight_0(
    #[values(IPV4, IPV6)] a: Addresses,
    #[values(false, true)] is_maglev: bool,
) {
    let of = |weights: &[u32], affinity| Service {
        affinity,
        ..service(a, Protocol::UDP, is_maglev, weights)
    };
    for affinity in [0, 600] {
        let mut world = world(&of(&[1, 0, 0, 0], affinity));
        let send = |world: &World, port| {
            let packet = packet_over(Protocol::UDP, at(a.pod, port), a.service(), Tcp::Ack);
            world.ingress(&packet)
        };
        assert_eq!(send(&world, 40_000).dst(), a.endpoint());
        world.apply(&of(&[0, 1, 0, 0], affinity));
        let again = send(&world, 40_000);
        assert_eq!(
            (again.counter, again.dst()),
            (Counter::ForwardedHit, a.endpoint())
        );
        let other = send(&world, 40_001);
        assert_eq!(other.counter, Counter::ForwardedNew);
        assert_eq!(other.dst() == a.endpoint(), affinity > 0, "{affinity}");
    }
}
