// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A forger sends packets with another host's address, but does not know the numbers of that host's
//! connection.

use std::net::SocketAddr;

use proxy_common::{Counter, Protocol, masquerade::PortRanges};
use rstest::rstest;

use crate::{
    packets::{Tcp, at, chunk, numbered, seen, tcp},
    service::{Addresses, Service},
    world::World,
};

/// The tc action that lets the next program see the packet: TC_ACT_UNSPEC, the same as TCX_NEXT of
/// tcx.
const NEXT: u32 = u32::MAX;
/// The number that a forger guesses.
const GUESS: u32 = 0x8000_0000;

struct Ends {
    client: SocketAddr,
    service: SocketAddr,
    backend: SocketAddr,
}

impl Ends {
    fn new(a: Addresses) -> Self {
        Self {
            client: at(a.pod, 40_000),
            service: at(a.cluster_ip, 80),
            backend: at(a.backend, 8080),
        }
    }
    fn world(&self, a: Addresses, protocol: Protocol) -> World {
        World::new(&[Service::cluster_ip(
            "web",
            protocol,
            a.cluster_ip,
            &[self.backend],
        )])
    }
    /// The state of the client's flow.
    fn state(&self, world: &World) -> &'static str {
        let mut flows = world.flows().into_iter();
        let own = flows.find(|flow| flow.client == self.client && flow.frontend == self.service);
        own.map_or("gone", |flow| flow.state)
    }
}

#[rstest]
fn a_segment_with_a_guessed_number_ends_no_connection(
    #[values(false, true)] v6: bool,
    #[values(Tcp::Fin, Tcp::Rst)] end: Tcp,
    #[values(false, true)] shared: bool,
) {
    let a = Addresses::of(v6);
    let ends = Ends::new(a);
    let world = ends.world(a, Protocol::TCP);
    world.set_shared(shared);
    let (client, service, backend) = (ends.client, ends.service, ends.backend);
    let from_client =
        |flags, numbers| world.ingress(&numbered(client, service, flags, numbers, b""));
    let from_backend =
        |flags, numbers| world.egress(&numbered(backend, client, flags, numbers, b""), false);
    from_client(Tcp::Syn, (100, 0));
    from_backend(Tcp::SynAck, (7000, 101));
    from_client(Tcp::Ack, (101, 7001));
    // The numbers of the connection move on.
    let far = 20_000_000;
    for sent in (0..far).step_by(1 << 20) {
        from_client(Tcp::Ack, (101 + sent, 7001 + sent));
        from_backend(Tcp::Ack, (7001 + sent, 101 + sent));
    }
    assert_eq!(ends.state(&world), "established");

    from_backend(end, (GUESS, GUESS));
    from_backend(end, (7001, GUESS));
    assert_eq!(ends.state(&world), "established", "the backend's is forged");
    if shared {
        // Through a pod's own interface no one else's packets come.
        from_client(end, (GUESS, GUESS));
        from_client(end, (101, GUESS));
        assert_eq!(ends.state(&world), "established", "the client's is forged");
    }
    from_backend(Tcp::SynAck, (GUESS, 101 + far));
    from_backend(end, (GUESS + 1, 101 + far));
    assert_eq!(ends.state(&world), "established", "nobody has asked again");

    from_backend(end, (7001 + far, 101 + far));
    assert_ne!(ends.state(&world), "established", "the backend's own");
    from_client(end, (101 + far, 7001 + far));
    assert_eq!(ends.state(&world), "closed");
}

#[rstest]
fn a_connection_that_its_client_has_forgotten_gets_new_numbers(#[values(false, true)] v6: bool) {
    let a = Addresses::of(v6);
    let ends = Ends::new(a);
    let world = ends.world(a, Protocol::TCP);
    let (client, service, backend) = (ends.client, ends.service, ends.backend);
    for start in [100, GUESS] {
        world.ingress(&numbered(client, service, Tcp::Syn, (start, 0), b""));
        let answer = numbered(backend, client, Tcp::SynAck, (start, start + 1), b"");
        world.egress(&answer, false);
        let numbers = (start + 1, start + 1);
        world.ingress(&numbered(client, service, Tcp::Ack, numbers, b""));
        assert_eq!(ends.state(&world), "established");
    }
    let reset = numbered(backend, client, Tcp::Rst, (GUESS + 1, 0), b"");
    world.egress(&reset, false);
    assert_eq!(ends.state(&world), "closed");
}

#[rstest]
fn an_association_is_established_and_ended_by_its_tags(#[values(false, true)] v6: bool) {
    const INIT: u8 = 1;
    const INIT_ACK: u8 = 2;
    const ABORT: u8 = 6;
    const COOKIE_ECHO: u8 = 10;
    let a = Addresses::of(v6);
    let ends = Ends::new(a);
    let world = ends.world(a, Protocol::SCTP);
    let (client, service, backend) = (ends.client, ends.service, ends.backend);
    let (clients, backends) = (0x1111_1111, 0x2222_2222);
    let from_client = |tag, what| world.ingress(&chunk(client, service, tag, what));
    let from_backend = |tag, what| world.egress(&chunk(backend, client, tag, what), false);
    from_client(0, (INIT, clients));
    from_backend(clients, (INIT_ACK, backends));
    from_client(GUESS, (COOKIE_ECHO, 0));
    assert_eq!(ends.state(&world), "answered", "the tag is a guess");
    from_client(backends, (COOKIE_ECHO, 0));
    assert_eq!(ends.state(&world), "established");
    from_backend(GUESS, (ABORT, 0));
    assert_eq!(ends.state(&world), "established");
    from_backend(clients, (ABORT, 0));
    assert_eq!(ends.state(&world), "closed");
}

#[rstest]
fn a_syn_that_anyone_may_have_sent_takes_no_connection_from_a_draining_backend(
    #[values(false, true)] v6: bool,
    #[values(false, true)] shared: bool,
) {
    let a = Addresses::of(v6);
    let ends = Ends::new(a);
    let mut world = ends.world(a, Protocol::TCP);
    world.set_shared(shared);
    for (from_client, flags) in [(true, Tcp::Syn), (false, Tcp::SynAck), (true, Tcp::Ack)] {
        if from_client {
            world.ingress(&tcp(ends.client, ends.service, flags, b""));
        } else {
            world.egress(&tcp(ends.backend, ends.client, flags, b""), false);
        }
    }
    let other = at(a.other_backend, 8080);
    world.apply(&Service::cluster_ip(
        "web",
        Protocol::TCP,
        a.cluster_ip,
        &[other],
    ));
    let again = world.ingress(&tcp(ends.client, ends.service, Tcp::Syn, b""));
    let (counter, backend) = if shared {
        (Counter::ForwardedHit, ends.backend)
    } else {
        (Counter::ForwardedNew, other)
    };
    assert_eq!((again.counter, seen(&again.packet).dst), (counter, backend));
}

#[rstest]
fn a_client_gets_a_tuple_although_others_have_begun_them_all_in_its_name(
    #[values(false, true)] v6: bool,
) {
    const PORTS: std::ops::RangeInclusive<u16> = 5000..=5003;
    let a = Addresses::of(v6);
    let ends = Ends::new(a);
    let mut world = ends.world(a, Protocol::TCP);
    let ranges = [*PORTS.start(), *PORTS.end(), 0, 0];
    world.configure(|settings| settings.masquerade_ports = PortRanges(ranges));
    world.set_shared(true);
    // The client's own port, and all the ports that its flow may get instead.
    for port in PORTS.chain([ends.client.port()]) {
        let forged = tcp(at(a.pod, port), ends.service, Tcp::Syn, b"");
        assert_eq!(world.ingress(&forged).counter, Counter::ForwardedNew);
    }
    world.set_shared(false);
    let own = world.ingress(&tcp(ends.client, ends.service, Tcp::Syn, b""));
    assert_eq!(own.counter, Counter::ForwardedNew);
    let answer = tcp(ends.backend, seen(&own.packet).src, Tcp::SynAck, b"");
    let answer = world.egress(&answer, false);
    assert_eq!(answer.counter, Counter::ReplyTranslated);
    assert_eq!(seen(&answer.packet).dst, ends.client);
}

#[rstest]
fn the_third_syn_straight_to_a_backend_is_left_to_foreign_programs_too(
    #[values(false, true)] v6: bool,
) {
    let a = Addresses::of(v6);
    let ends = Ends::new(a);
    let world = ends.world(a, Protocol::TCP);
    for _ in 0..5 {
        let syn = world.ingress(&tcp(ends.client, ends.backend, Tcp::Syn, b""));
        assert_eq!(syn.verdict, NEXT, "the next program sees it");
        assert_eq!(syn.counter, Counter::Untouched);
    }
}
