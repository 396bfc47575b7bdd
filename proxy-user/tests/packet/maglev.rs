// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `selection: maglev`: the programs select the backend that the host's function names, two nodes
//! select the same one, and a node continues connections that another one began.

use std::net::SocketAddr;

use proxy_common::{
    Addr, Counter, EndpointSet, FrontendKey, FrontendKind, Port, Protocol, ServiceFlags,
    select::{client_number, flow_number, maglev},
};
use rstest::rstest;

use crate::{
    connection::Connection,
    packets::{Tcp, at, packet_over},
    service::{Addresses, IPV4, IPV6, Service, v4, v6},
    world::{NEXT, World},
};

/// The flags of `externalTrafficPolicy: Local`, so that clients outside keep their address.
const LOCAL: u32 = ServiceFlags::EXTERNAL_LOCAL | ServiceFlags::EXTERNAL_BLOCK_LOCAL;
/// The number of slots in the half-open ring of [`World`]'s table.
const RING: usize = 128;

/// A service with four backends at a cluster IP, a load balancer's address and a node port.
fn service(a: Addresses, protocol: Protocol) -> Service {
    let backends = [a.backend, a.other_backend].map(|pod| [at(pod, 8080), at(pod, 8081)]);
    let flags = LOCAL | ServiceFlags::MAGLEV;
    let mut service = Service::over(protocol, a)
        .backed_by(backends.as_flattened())
        .at_balancer(a, flags)
        .with(None, 30_080, FrontendKind::NodePort, flags);
    service.frontends[0].3 = ServiceFlags::MAGLEV;
    for (_, sets) in &mut service.backends {
        *sets = EndpointSet::CLUSTER.union(EndpointSet::LOCAL);
    }
    service
}

/// The backend that the functions on the host name.
fn expected<A: Addr>(
    of: fn(std::net::IpAddr) -> Option<A>,
    service: &Service,
    client: SocketAddr,
    frontend: Option<SocketAddr>,
) -> SocketAddr {
    let ends: Vec<_> = service
        .backends
        .iter()
        .map(|(end, _)| (of(end.ip()).expect("family"), Port::from_host(end.port())))
        .collect();
    let address = frontend.map_or(A::UNSPECIFIED, |to| of(to.ip()).expect("family"));
    let port = Port::from_host(frontend.map_or(30_080, |to| to.port()));
    let key = FrontendKey::new(address, port, service.protocol);
    let source = of(client.ip()).expect("family");
    let number = if service.affinity > 0 {
        client_number(source)
    } else {
        flow_number(source, Port::from_host(client.port()), &key)
    };
    let table = maglev::table(&ends);
    service.backends[table[number as usize % table.len()] as usize].0
}

/// Two nodes with the same service; the second got it in other orders and after another service.
fn nodes(a: Addresses, service: &dyn Fn() -> Service) -> [World; 2] {
    let one = World::new(&[service()]);
    let backends = [at(a.other_backend, 9000), at(a.other_backend, 9001)];
    let other = Service::cluster_ip("x", Protocol::TCP, a.other_cluster_ip, &backends);
    let mut reversed = service();
    reversed.backends.reverse();
    let mut part = service();
    part.backends.remove(0);
    // Needs two lookup tables for each family, and further ones after changes.
    let mut two = World::with(|options| options.capacities.slots = 8192, &[other, part]);
    two.apply(&reversed);
    two.set_node_addresses(&[a.other_node_address]);
    [one, two]
}

#[rstest]
fn two_nodes_select_the_backend_that_the_host_function_computes(
    #[values(IPV4, IPV6)] a: Addresses,
    #[values(Protocol::TCP, Protocol::UDP)] protocol: Protocol,
    #[values(0, 600)] affinity: u32,
) {
    let make = || Service {
        affinity,
        ..service(a, protocol)
    };
    let [one, two] = nodes(a, &make);
    let send = |world: &World, client, to| {
        let packet = packet_over(protocol, client, to, Tcp::Syn);
        let outcome = world.ingress(&packet);
        assert_eq!(outcome.counter, Counter::ForwardedNew);
        outcome.dst()
    };
    let mut chosen = std::collections::BTreeSet::new();
    for n in 0..60 {
        // With affinity, further connections of the client would keep the first one's backend.
        let client = if affinity > 0 { 0 } else { n };
        let client = at(a.outsider, 40_000 + client);
        let to = at(a.balancer, 80);
        let name_of = |client, to| {
            if a.is_v6() {
                expected(v6, &make(), client, to)
            } else {
                expected(v4, &make(), client, to)
            }
        };
        let name = name_of(client, Some(to));
        assert_eq!(send(&one, client, to), name, "{client}");
        assert_eq!(send(&two, client, to), name, "{client}");
        chosen.insert(name);
        let cluster_ip = a.service();
        let pod = at(a.pod, client.port());
        let (x, y) = (send(&one, pod, cluster_ip), send(&two, pod, cluster_ip));
        assert_eq!(x, y, "at the cluster IP");
        if affinity > 0 {
            return;
        }
        // Uses another source port, so that no backend sees the same tuple twice.
        let client = at(a.outsider, client.port() + 1000);
        let name = name_of(client, None);
        let at_one = send(&one, client, at(a.node, 30_080));
        let at_two = send(&two, client, at(a.other_node_address, 30_080));
        assert_eq!((at_one, at_two), (name, name), "node port");
    }
    assert_eq!(chosen.len(), 4, "all of them");
}

/// A connection from this port outside to the load balancer's address.
fn from_outside(a: Addresses, port: u16) -> Connection {
    Connection {
        client: at(a.outsider, port),
        service: at(a.balancer, 80),
        ..Connection::new(a)
    }
}

/// Expects that a segment of the backend reaches the client from the service.
fn answer(connection: &Connection, node: &World, flags: Tcp, numbers: (u32, u32)) {
    let outcome = connection.backend_sends(node, flags, numbers);
    assert_eq!(outcome.counter, Counter::ReplyTranslated);
    assert_eq!(outcome.src(), connection.service);
}

#[rstest]
fn an_established_connection_continues_at_another_node(
    #[values(IPV4, IPV6)] a: Addresses,
    #[values(false, true)] shared: bool,
) {
    let [one, two] = nodes(a, &|| service(a, Protocol::TCP));
    two.set_shared(shared);
    for port in 40_000..40_030 {
        let connection = from_outside(a, port).establish(&one);
        let moved = connection.client_sends(&two, Tcp::Ack, (101, 7001));
        assert_eq!(moved.fate(), (NEXT, Counter::ForwardedMidStream));
        assert!(!moved.marked);
        assert_eq!(moved.ends(), (connection.client, connection.backend));
        assert_eq!(connection.state(&two), "unanswered", "gives way");
        answer(&connection, &two, Tcp::Ack, (7001, 101));
        assert_eq!(connection.state(&two), "answered", "gives way, too");
        // The acknowledgement is far ahead, as one that covers many large segments.
        let outcome = connection.client_sends(&two, Tcp::Ack, (101, 7001 + 1_000_000));
        assert_eq!(outcome.counter, Counter::ForwardedHit);
        assert_eq!(connection.state(&two), "established");
        connection.client_sends(&two, Tcp::Fin, (101, 7001));
        answer(&connection, &two, Tcp::Fin, (7001, 102));
        assert_eq!(connection.state(&two), "closed");
    }
}

#[rstest]
fn forged_mid_stream_segments_make_no_lasting_or_established_flow(
    #[values(IPV4, IPV6)] a: Addresses,
) {
    let node = World::new(&[service(a, Protocol::TCP)]);
    node.set_shared(true);
    let open = from_outside(a, 30_000).establish(&node);
    for port in 40_000..41_000 {
        let mut forged = from_outside(a, port);
        let outcome = forged.client_sends(&node, Tcp::Ack, (1, 1));
        assert_eq!(outcome.counter, Counter::ForwardedMidStream);
        // A host answers with a reset if it has no such connection.
        if port % 2 == 0 {
            forged.backend = outcome.dst();
            answer(&forged, &node, Tcp::Rst, (1, 0));
            assert_eq!(forged.state(&node), "closed");
        }
    }
    assert!(node.flows().len() <= 2 * RING + 1);
    assert_eq!(open.state(&node), "established");
    answer(&open, &node, Tcp::Ack, (7001, 101));

    // A real connection of another host, whose numbers the forger does not know: the backend's
    // answer shows that it has the connection.
    let mut other = from_outside(a, 50_000);
    other.backend = other.client_sends(&node, Tcp::Ack, (1, 1)).dst();
    answer(&other, &node, Tcp::Ack, (0x8000_0000, 5));
    for guess in [1, 0x4000_0000, 0xc000_0000] {
        other.client_sends(&node, Tcp::Ack, (1, guess));
        assert_eq!(other.state(&node), "answered");
    }
}
