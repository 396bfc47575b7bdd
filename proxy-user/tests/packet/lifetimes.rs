// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which flows are evicted for new ones, and which never are. What a repeated SYN does stands in
//! tests/fuzz/cases/lifetimes.txt.

use std::{net::SocketAddr, thread};

use linux::test_run;
use proxy_common::{
    Addr, Counter, FlowEntry, FlowKey, FlowKind, Protocol, V4, V6, flow::coarse, maps,
    masquerade::PortRanges,
};
use rstest::rstest;

use crate::{
    packets::{Tcp, at, tcp, udp},
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
