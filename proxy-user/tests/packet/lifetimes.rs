// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which flows are evicted for new ones, which never are, and what a repeated SYN does.

use std::{net::SocketAddr, thread};

use linux::test_run;
use proxy_common::{
    Addr, Counter, FlowEntry, FlowKey, FlowKind, Protocol, V4, V6, flow::coarse, maps,
    masquerade::PortRanges,
};
use rstest::rstest;

use crate::{
    packets::{Tcp, at, numbered, tcp, udp},
    service::{Addresses, IPV4, IPV6, Service},
    world::{Context, World},
};

/// The number of slots in each ring: the table of [`World`] has 1024 entries.
const RING: usize = 128;

/// A connection from a client's port to a service, which a test sends packet by packet.
struct Connection<'a> {
    world: &'a World,
    client: SocketAddr,
    service: SocketAddr,
    backend: SocketAddr,
}

impl<'a> Connection<'a> {
    /// Sends the SYN.
    fn begin(world: &'a World, client: SocketAddr, service: SocketAddr) -> Self {
        let outcome = world.ingress(&tcp(client, service, Tcp::Syn, b""));
        assert_eq!(outcome.counter, Counter::ForwardedNew, "{client}");
        Self {
            world,
            client,
            service,
            backend: outcome.dst(),
        }
    }
    fn client_sends(&self, flags: Tcp) -> Counter {
        let packet = tcp(self.client, self.service, flags, b"");
        self.world.ingress(&packet).counter
    }
    fn backend_sends(&self, flags: Tcp) -> Counter {
        let packet = tcp(self.backend, self.client, flags, b"");
        self.world.egress(&packet, false).counter
    }
    /// Sends the SYN-ACK and the client's acknowledgement.
    fn establish(self) -> Self {
        assert_eq!(self.backend_sends(Tcp::SynAck), Counter::ReplyTranslated);
        assert_eq!(self.client_sends(Tcp::Ack), Counter::ForwardedHit);
        self
    }
    fn is_established(&self) -> bool {
        self.state() == "established"
    }
    fn state(&self) -> &'static str {
        self.world.state(self.client, self.service)
    }
}

#[rstest]
fn half_open_flows_are_evicted_for_new_ones_and_established_ones_are_not(
    #[values(IPV4, IPV6)] a: Addresses,
) {
    let world = World::new(&[Service::web(a)]);
    let service = a.service();
    let open: Vec<_> = (0..20)
        .map(|n| Connection::begin(&world, at(a.pod, 10_000 + n), service).establish())
        .collect();
    // Makes twice as many entries as the table holds.
    for n in 0..1000 {
        let connection = Connection::begin(&world, at(a.pod, 20_000 + n), service);
        if n % 2 == 0 {
            connection.backend_sends(Tcp::SynAck);
        }
    }
    let late = Connection::begin(&world, at(a.pod, 30_000), service).establish();
    for connection in open.iter().chain([&late]) {
        assert_eq!(connection.state(), "established");
        assert_eq!(connection.client_sends(Tcp::Ack), Counter::ForwardedHit);
    }
    let left = world.flows().len();
    assert!(left <= RING + open.len() + 1, "{left}");
}

#[rstest]
fn udp_flows_without_a_second_request_are_evicted_for_new_ones(#[values(IPV4, IPV6)] a: Addresses) {
    let backend = a.endpoint();
    let world = World::new(&[Service::over(Protocol::UDP, a)]);
    let service = a.service();
    for n in 0..1000 {
        let client = at(a.pod, 20_000 + n);
        let asked = world.ingress(&udp(client, service, b"?"));
        assert_eq!(asked.counter, Counter::ForwardedNew);
        let answered = world.egress(&udp(backend, client, b"!"), false);
        assert_eq!(answered.counter, Counter::ReplyTranslated);
    }
    assert!(world.flows().len() <= RING);
}

#[rstest]
fn a_full_flow_table_evicts_closed_connections_but_no_open_ones(
    #[values(IPV4, IPV6)] a: Addresses,
) {
    let world = World::new(&[Service::web(a)]);
    let service = a.service();
    let open: Vec<_> = (0..450)
        .map(|n| Connection::begin(&world, at(a.pod, 10_000 + n), service).establish())
        .collect();
    for n in 0..300 {
        let connection = Connection::begin(&world, at(a.pod, 20_000 + n), service).establish();
        connection.client_sends(Tcp::Fin);
        connection.backend_sends(Tcp::Fin);
        assert_eq!(connection.state(), "closed");
    }
    assert!(open.iter().all(Connection::is_established));
    // Fills the table with established connections only.
    let mut refused = None;
    for n in 0..600 {
        let client = at(a.pod, 30_000 + n);
        let outcome = world.ingress(&tcp(client, service, Tcp::Syn, b""));
        if outcome.counter == Counter::DroppedFlowTableFull {
            refused = Some(n);
            break;
        }
        world.egress(&tcp(outcome.dst(), client, Tcp::SynAck, b""), false);
        world.ingress(&tcp(client, service, Tcp::Ack, b""));
    }
    assert!(refused.is_some_and(|n| n > 40), "{refused:?}");
    assert!(open.iter().all(Connection::is_established));
}

#[rstest]
fn a_table_with_one_free_element_evicts_closed_connections(#[values(IPV4, IPV6)] a: Addresses) {
    let world = World::new(&[Service::web(a)]);
    let service = a.service();
    // Each masqueraded connection has three of the 1024 elements.
    for n in 0..341 {
        let client = at(a.outsider, 10_000 + n);
        let (source, backend) = world.forward(&tcp(client, service, Tcp::Syn, b"")).ends();
        world.forward(&tcp(backend, source, Tcp::SynAck, b""));
        world.forward(&tcp(client, service, Tcp::Ack, b""));
        if n < 100 {
            world.forward(&tcp(client, service, Tcp::Fin, b""));
            world.forward(&tcp(backend, source, Tcp::Fin, b""));
        }
    }
    assert_eq!(world.entries(a.is_v6()), 1023);
    Connection::begin(&world, at(a.outsider, 20_000), service);
}

#[rstest]
fn only_the_right_acknowledgement_number_establishes_a_connection(
    #[values(IPV4, IPV6)] a: Addresses,
) {
    let world = World::new(&[Service::web(a)]);
    let connection = Connection::begin(&world, a.client(), a.service());
    connection.backend_sends(Tcp::SynAck);
    let mut forged = tcp(connection.client, connection.service, Tcp::Ack, b"");
    let acknowledgement = forged.len() - 12;
    forged[acknowledgement..acknowledgement + 4].copy_from_slice(&0x1234_5678_u32.to_be_bytes());
    assert_eq!(world.ingress_quietly(&forged), crate::world::NEXT);
    assert_eq!(connection.state(), "answered");
    connection.client_sends(Tcp::Ack);
    assert_eq!(connection.state(), "established");
}

#[rstest]
fn crossing_fins_on_two_cpus_close_the_connection_and_allow_eviction(
    #[values(IPV4, IPV6)] a: Addresses,
) {
    let world = World::new(&[Service::web(a)]);
    let service = a.service();
    for round in 0..20 {
        let open: Vec<_> = (0..40)
            .map(|n| Connection::begin(&world, at(a.pod, 10_000 + round * 40 + n), service))
            .map(Connection::establish)
            .collect();
        let [by_clients, by_backends] = ["ingress", "egress"].map(|name| world.program(name));
        thread::scope(|scope| {
            let fins = open
                .iter()
                .map(|open| tcp(open.client, service, Tcp::Fin, b""));
            let fins: Vec<_> = fins.collect();
            scope.spawn(move || {
                for fin in fins {
                    test_run(by_clients, &fin, &[], 1).expect("runs");
                }
            });
            for open in &open {
                let fin = tcp(open.backend, open.client, Tcp::Fin, b"");
                test_run(by_backends, &fin, &[], 1).expect("runs");
            }
        });
        // Connections of the round before may have been evicted.
        for connection in &open {
            assert_eq!(connection.state(), "closed");
        }
    }
    let left = world.flows().len();
    assert!(left <= RING, "{left} flows, closed ones in no ring");
}

#[rstest]
fn a_connection_goes_on_after_a_forged_reset(#[values(IPV4, IPV6)] a: Addresses) {
    let world = World::new(&[Service::web(a)]);
    let connection = Connection::begin(&world, a.client(), a.service()).establish();
    connection.client_sends(Tcp::Rst);
    assert_eq!(connection.state(), "closed");
    connection.client_sends(Tcp::Ack);
    assert_eq!(connection.state(), "established");
}

#[rstest]
fn only_closed_connections_free_their_masquerade_ports(
    #[values(IPV4, IPV6)] a: Addresses,
    #[values(Tcp::Fin, Tcp::Rst)] end: Tcp,
    #[values(false, true)] backend_first: bool,
) {
    let mut world = World::new(&[Service::web(a)]);
    world.configure(|settings| settings.masquerade_ports = PortRanges([5000, 5007, 0, 0]));
    let service = a.service();
    let connect = |port: u16| {
        let client = at(a.outsider, port);
        let out = world.forward(&tcp(client, service, Tcp::Syn, b""));
        (out.counter == Counter::Masqueraded).then(|| {
            let (source, backend) = out.ends();
            world.forward(&tcp(backend, source, Tcp::SynAck, b""));
            world.forward(&tcp(client, service, Tcp::Ack, b""));
            (client, source, backend)
        })
    };
    let open = [connect(30_000), connect(30_001)].map(|open| open.expect("a port").1);
    for n in 0..40 {
        let (client, source, backend) = connect(40_000 + n).expect("a port");
        assert!(!open.contains(&source), "an open connection keeps its port");
        let by_client = || drop(world.forward(&tcp(client, service, end, b"")));
        let by_backend = || drop(world.forward(&tcp(backend, source, end, b"")));
        if backend_first {
            by_backend();
            by_client();
        } else {
            by_client();
            by_backend();
        }
    }
    for n in 0..6 {
        connect(50_000 + n).expect("a port");
    }
    assert!(connect(50_006).is_none(), "all eight are in use");
}

#[rstest]
fn the_second_repetition_of_a_syn_goes_to_another_backend(#[values(IPV4, IPV6)] a: Addresses) {
    let backends = a.endpoints();
    let mut service = Service::web(a).backed_by(&backends);
    let mut world = World::new(std::slice::from_ref(&service));
    let send = |world: &World, port| {
        let syn = tcp(at(a.pod, port), a.service(), Tcp::Syn, b"");
        let outcome = world.ingress(&syn);
        (outcome.counter, outcome.dst())
    };
    for port in 40_000..40_010 {
        let (counter, first) = send(&world, port);
        assert_eq!(counter, Counter::ForwardedNew);
        assert_eq!(send(&world, port), (Counter::ForwardedHit, first));
        let (counter, second) = send(&world, port);
        assert_eq!(counter, Counter::ForwardedElsewhere);
        assert_ne!(first, second);
        // An answer of the first backend is no longer expected; one of the second is.
        let late = tcp(first, at(a.pod, port), Tcp::SynAck, b"");
        assert_eq!(world.egress(&late, false).counter, Counter::Untouched);
        let answer = tcp(second, at(a.pod, port), Tcp::SynAck, b"");
        let answer = world.egress(&answer, false);
        assert_eq!(answer.counter, Counter::ReplyTranslated);
        assert_eq!(send(&world, port), (Counter::ForwardedHit, second));
    }
    service.affinity = 600;
    world.apply(&service);
    let (_, held) = send(&world, 50_000);
    for _ in 0..6 {
        assert_eq!(send(&world, 50_000).1, held, "affinity holds");
    }
}

#[rstest]
fn syns_with_new_sequence_numbers_are_no_repetitions_and_keep_the_backend(
    #[values(IPV4, IPV6)] a: Addresses,
) {
    let backends = a.endpoints();
    let world = World::new(&[Service::web(a).backed_by(&backends)]);
    let (client, service) = (a.client(), a.service());
    let send = |sequence| {
        let syn = numbered(client, service, Tcp::Syn, (sequence, 0), b"");
        let outcome = world.ingress(&syn);
        (outcome.counter, outcome.dst())
    };
    let (counter, first) = send(1);
    assert_eq!(counter, Counter::ForwardedNew);
    for sequence in 2..12 {
        assert_eq!(send(sequence), (Counter::ForwardedHit, first));
    }
    assert_eq!(send(11), (Counter::ForwardedHit, first), "repeated once");
    assert_eq!(send(11).0, Counter::ForwardedElsewhere, "and once more");
}

/// Makes all flows look as if their last packet had come this many seconds ago.
fn pass(world: &World, v6: bool, seconds: u64) {
    fn older<A: Addr>(key: &FlowKey<A>, entry: &mut FlowEntry<A>, past: u64) {
        entry.last_seen -= past;
        if key.protocol == Protocol::UDP && entry.kind == FlowKind::ORIGINAL {
            entry.reuse -= coarse(past);
        }
    }
    let past = seconds * 1_000_000_000;
    if v6 {
        world.change_flows::<V6>(maps::FLOWS_V6, |key, entry| older(key, entry, past));
    } else {
        world.change_flows::<V4>(maps::FLOWS_V4, |key, entry| older(key, entry, past));
    }
}

#[rstest]
fn datagrams_follow_their_frontend_to_another_service_within_a_second(
    #[values(IPV4, IPV6)] a: Addresses,
) {
    let service = |name, cluster_ip, backend, has_balancer: bool| {
        let service = Service::cluster_ip(name, Protocol::UDP, cluster_ip, &[at(backend, 53)]);
        if has_balancer {
            service.at_balancer(a, 0)
        } else {
            service
        }
    };
    let one = |has_balancer| service("one", a.cluster_ip, a.backend, has_balancer);
    let two = |has_balancer| service("two", a.other_cluster_ip, a.other_backend, has_balancer);
    let mut world = World::new(&[one(true), two(false)]);
    let send = |world: &World, client, to| {
        let outcome = world.ingress(&udp(client, at(to, 80), b"?"));
        (outcome.counter, outcome.dst().ip())
    };
    let (client, other) = (a.outside_client(), a.client());
    let begun = (Counter::ForwardedNew, a.backend);
    assert_eq!(send(&world, client, a.balancer), begun);
    assert_eq!(send(&world, other, a.cluster_ip), begun);
    world.apply(&one(false));
    world.apply(&two(true));
    pass(&world, a.is_v6(), 1);
    let moved = (Counter::ForwardedNew, a.other_backend);
    assert_eq!(send(&world, client, a.balancer), moved);
    let kept = (Counter::ForwardedHit, a.backend);
    assert_eq!(send(&world, other, a.cluster_ip), kept, "another frontend");
    // Now no service has the frontend.
    world.apply(&two(false));
    pass(&world, a.is_v6(), 1);
    let packet = udp(client, at(a.balancer, 80), b"?");
    assert_eq!(world.ingress(&packet).counter, Counter::Untouched);
}

#[rstest]
fn udp_flows_in_use_are_not_evicted_by_many_new_ones(#[values(IPV4, IPV6)] a: Addresses) {
    let world = World::new(&[Service::over(Protocol::UDP, a).backed_by(&a.endpoints())]);
    let service = a.service();
    let (sender, asker) = (at(a.pod, 10_000), at(a.pod, 10_001));
    let send = |client, payload: &[u8]| {
        let outcome = world.ingress(&udp(client, service, payload));
        (outcome.counter, outcome.dst())
    };
    // One client sends for long without an answer. The other asks once and receives for long.
    let (_, log) = send(sender, b"a line");
    let (_, stream) = send(asker, b"a question");
    let hears = || world.egress(&udp(stream, asker, b"part"), false).counter;
    assert_eq!(hears(), Counter::ReplyTranslated);
    for round in 0..10 {
        for n in 0..100 {
            let client = at(a.pod, 20_000 + round * 100 + n);
            assert_eq!(send(client, b"?").0, Counter::ForwardedNew);
        }
        pass(&world, a.is_v6(), 2);
        assert_eq!(send(sender, b"a line"), (Counter::ForwardedHit, log));
        assert_eq!(hears(), Counter::ReplyTranslated, "round {round}");
    }
    assert!(world.flows().len() <= RING, "the others have gone");
}

#[rstest]
fn a_repeated_syn_begins_a_new_flow_if_its_backend_was_removed(#[values(IPV4, IPV6)] a: Addresses) {
    let (old, new) = (a.endpoint(), at(a.other_backend, 8080));
    let service = |backend| Service::web(a).backed_by(&[backend]);
    let mut world = World::new(&[service(old)]);
    let syn = tcp(a.client(), a.service(), Tcp::Syn, b"");
    assert_eq!(world.ingress(&syn).dst(), old);
    world.apply(&service(new));
    let again = world.ingress(&syn);
    assert_eq!(again.counter, Counter::ForwardedNew);
    assert_eq!(again.dst(), new);
}

#[rstest]
fn packets_forged_by_another_pod_do_not_reach_or_change_a_pods_flow(
    #[values(IPV4, IPV6)] a: Addresses,
) {
    let world = World::new(&[Service::web(a)]);
    let connection = Connection::begin(&world, a.client(), a.service()).establish();
    // Sends the same packets through another interface.
    world.set_shared(true);
    for flags in [Tcp::Ack, Tcp::Fin, Tcp::Rst] {
        let counter = connection.client_sends(flags);
        let unknown = [Counter::RejectedUnknownFlow, Counter::Untouched];
        assert!(unknown.contains(&counter), "{flags:?}: {counter:?}");
    }
    let forged = Connection::begin(&world, connection.client, connection.service);
    // The pod's replies leave by its own interface only.
    assert_eq!(forged.backend_sends(Tcp::Ack), Counter::Untouched);
    world.set_shared(false);
    assert_eq!(connection.state(), "established");
    assert_eq!(connection.client_sends(Tcp::Ack), Counter::ForwardedHit);
    assert_eq!(connection.backend_sends(Tcp::Ack), Counter::ReplyTranslated);
}

#[rstest]
fn only_the_nodes_own_datagrams_from_a_node_port_make_a_flow_entry(
    #[values(IPV4, IPV6)] a: Addresses,
) {
    // A forwarded packet whose source is an address of the node is possible for IPv6 only.
    let mut service = Service::web(a).at_node_port(30_080);
    service.protocol = Protocol::UDP;
    let world = World::new(&[service]);
    let datagram = udp(at(a.node, 30_080), at(a.outsider, 53), b"?");
    let spoofed = Context {
        came_by: 1,
        ..Context::default()
    };
    world.egress_by(&datagram, spoofed);
    assert_eq!(world.entries(a.is_v6()), usize::from(!a.is_v6()));
    world.egress_by(&datagram, Context::default());
    assert_eq!(world.entries(a.is_v6()), 1);
}
