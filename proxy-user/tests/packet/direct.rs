// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A client uses one source port both to a service and straight to its backend: the two connections
//! never mix, whichever begins first.

use std::net::SocketAddr;

use proxy_common::{Counter, Protocol};
use rstest::rstest;

use crate::{
    packets::{Tcp, at, seen, tcp, udp},
    service::{Addresses, Service},
    world::World,
};

/// The ends of a connection that goes through a service or straight to the backend.
#[derive(Clone, Copy)]
struct Ends {
    client: SocketAddr,
    service: SocketAddr,
    backend: SocketAddr,
}

fn ends(v6: bool, protocol: Protocol) -> (World, Ends) {
    let a = Addresses::of(v6);
    let ends = Ends {
        client: at(a.pod, 40_000),
        service: at(a.cluster_ip, 80),
        backend: at(a.backend, 8080),
    };
    let service = Service::cluster_ip("web", protocol, a.cluster_ip, &[ends.backend]);
    (World::new(&[service]), ends)
}

/// Sends the client's first packet; returns the source that the backend sees.
fn begin(world: &World, client: SocketAddr, to: SocketAddr, protocol: Protocol) -> SocketAddr {
    let packet = match protocol {
        Protocol::UDP => udp(client, to, b"?"),
        _ => tcp(client, to, Tcp::Syn, b""),
    };
    seen(&world.ingress(&packet).packet).src
}

/// Sends the backend's packet; returns its source and destination as the client sees them.
fn answer(
    world: &World,
    backend: SocketAddr,
    to: SocketAddr,
    protocol: Protocol,
) -> (SocketAddr, SocketAddr) {
    let packet = match protocol {
        Protocol::UDP => udp(backend, to, b"!"),
        _ => tcp(backend, to, Tcp::SynAck, b""),
    };
    let seen = seen(&world.egress(&packet, false).packet);
    (seen.src, seen.dst)
}

#[rstest]
fn a_port_that_a_service_knows_can_be_used_directly_at_the_same_time(
    #[values(false, true)] v6: bool,
    #[values(Protocol::TCP, Protocol::UDP)] protocol: Protocol,
) {
    let (
        world,
        Ends {
            client,
            service,
            backend,
        },
    ) = ends(v6, protocol);
    assert_eq!(begin(&world, client, service, protocol), client);
    assert_eq!(answer(&world, backend, client, protocol), (service, client));
    let other = begin(&world, client, backend, protocol);
    assert_eq!(other.ip(), client.ip());
    assert_ne!(other, client, "the backend must tell the two apart");
    assert_eq!(answer(&world, backend, other, protocol), (backend, client));
    assert_eq!(answer(&world, backend, client, protocol), (service, client));
    // Later packets of both connections are translated as the first ones were.
    if protocol == Protocol::TCP {
        let data = tcp(client, backend, Tcp::Ack, b"data");
        assert_eq!(seen(&world.ingress(&data).packet).src, other);
        let data = tcp(client, service, Tcp::Ack, b"data");
        assert_eq!(seen(&world.ingress(&data).packet).src, client);
    }
}

#[rstest]
fn a_port_of_a_closed_connection_is_free_for_a_direct_one(#[values(false, true)] v6: bool) {
    let (
        world,
        Ends {
            client,
            service,
            backend,
        },
    ) = ends(v6, Protocol::TCP);
    begin(&world, client, service, Protocol::TCP);
    answer(&world, backend, client, Protocol::TCP);
    world.ingress(&tcp(client, service, Tcp::Ack, b""));
    world.ingress(&tcp(client, service, Tcp::Rst, b""));
    assert_eq!(begin(&world, client, backend, Protocol::TCP), client);
    assert_eq!(
        answer(&world, backend, client, Protocol::TCP),
        (backend, client)
    );
    assert_eq!(world.flows().len(), 0);
}

#[rstest]
fn a_port_that_is_used_directly_can_be_used_towards_a_service(#[values(false, true)] v6: bool) {
    let (
        world,
        Ends {
            client,
            service,
            backend,
        },
    ) = ends(v6, Protocol::TCP);
    assert_eq!(begin(&world, client, backend, Protocol::TCP), client);
    let other = begin(&world, client, service, Protocol::TCP);
    assert_ne!(other, client, "the backend must tell the two apart");
    assert_eq!(
        answer(&world, backend, other, Protocol::TCP),
        (service, client)
    );
    assert_eq!(
        answer(&world, backend, client, Protocol::TCP),
        (backend, client)
    );
}

#[test]
fn a_reply_that_was_entered_a_moment_ago_is_no_orphan() {
    let a = Addresses::of(false);
    let (client, backend) = (at(a.pod, 40_000), at(a.backend, 8080));
    let services = [("one", a.cluster_ip), ("two", a.other_cluster_ip)]
        .map(|(name, address)| Service::cluster_ip(name, Protocol::TCP, address, &[backend]));
    let world = World::new(&services);
    let connect = |to| begin(&world, client, at(to, 80), Protocol::TCP);
    assert_eq!(connect(a.cluster_ip), client);
    // Another CPU has written the reply entry and is about to write the original entry.
    world.forget_originals();
    let second = connect(a.other_cluster_ip);
    assert_ne!(second, client);
    assert_eq!(
        answer(&world, backend, second, Protocol::TCP),
        (at(a.other_cluster_ip, 80), client)
    );
    world.forget_originals();
    // The other CPU never writes it.
    std::thread::sleep(std::time::Duration::from_millis(2_100));
    assert_eq!(connect(a.cluster_ip), client);
}

#[rstest]
fn a_flow_of_another_pod_does_not_touch_a_direct_connection(#[values(false, true)] v6: bool) {
    let (
        world,
        Ends {
            client,
            service,
            backend,
        },
    ) = ends(v6, Protocol::TCP);
    // Another sender uses this client's address.
    world.set_shared(true);
    begin(&world, client, service, Protocol::TCP);
    world.set_shared(false);
    assert_eq!(begin(&world, client, backend, Protocol::TCP), client);
    let answered = tcp(backend, client, Tcp::SynAck, b"");
    assert_eq!(world.egress(&answered, false).counter, Counter::Untouched);
}
