// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A forger sends packets with another host's address, but does not know the numbers of that host's
//! connection.

use proxy_common::{Counter, Protocol, masquerade::PortRanges};
use rstest::rstest;

use crate::{
    connection::Connection,
    packets::{Tcp, at, chunk, tcp},
    service::{Addresses, IPV4, IPV6, Service},
    world::{NEXT, World},
};

/// The number that a forger guesses.
const GUESS: u32 = 0x8000_0000;

#[rstest]
fn a_segment_with_a_guessed_number_ends_no_connection(
    #[values(IPV4, IPV6)] a: Addresses,
    #[values(Tcp::Fin, Tcp::Rst)] end: Tcp,
    #[values(false, true)] shared: bool,
) {
    let connection = Connection::new(a);
    let world = World::new(&[Service::web(a)]);
    world.set_shared(shared);
    let connection = connection.establish(&world);
    let from_client = |flags, numbers| connection.client_sends(&world, flags, numbers);
    let from_backend = |flags, numbers| connection.backend_sends(&world, flags, numbers);
    // The numbers of the connection move on.
    let far = 20_000_000;
    for sent in (0..far).step_by(1 << 20) {
        from_client(Tcp::Ack, (101 + sent, 7001 + sent));
        from_backend(Tcp::Ack, (7001 + sent, 101 + sent));
    }
    let state = || connection.state(&world);
    assert_eq!(state(), "established");

    from_backend(end, (GUESS, GUESS));
    from_backend(end, (7001, GUESS));
    assert_eq!(state(), "established", "the backend's is forged");
    if shared {
        // Through a pod's own interface no one else's packets come.
        from_client(end, (GUESS, GUESS));
        from_client(end, (101, GUESS));
        assert_eq!(state(), "established", "the client's is forged");
    }
    from_backend(Tcp::SynAck, (GUESS, 101 + far));
    from_backend(end, (GUESS + 1, 101 + far));
    assert_eq!(state(), "established", "nobody has asked again");

    from_backend(end, (7001 + far, 101 + far));
    assert_ne!(state(), "established", "the backend's own");
    from_client(end, (101 + far, 7001 + far));
    assert_eq!(state(), "closed");
}

#[rstest]
fn a_new_handshake_on_an_established_connection_updates_its_numbers(
    #[values(IPV4, IPV6)] a: Addresses,
) {
    let connection = Connection::new(a);
    let world = World::new(&[Service::web(a)]);
    for start in [100, GUESS] {
        connection.client_sends(&world, Tcp::Syn, (start, 0));
        connection.backend_sends(&world, Tcp::SynAck, (start, start + 1));
        connection.client_sends(&world, Tcp::Ack, (start + 1, start + 1));
        assert_eq!(connection.state(&world), "established");
    }
    connection.backend_sends(&world, Tcp::Rst, (GUESS + 1, 0));
    assert_eq!(connection.state(&world), "closed");
}

#[rstest]
fn an_sctp_association_opens_and_ends_only_with_its_verification_tags(
    #[values(IPV4, IPV6)] a: Addresses,
) {
    const INIT: u8 = 1;
    const INIT_ACK: u8 = 2;
    const ABORT: u8 = 6;
    const COOKIE_ECHO: u8 = 10;
    let connection = Connection::new(a);
    let world = World::new(&[Service::over(Protocol::SCTP, a)]);
    let (client, service, backend) = a.ends();
    let (clients, backends) = (0x1111_1111, 0x2222_2222);
    let from_client = |tag, what| world.ingress(&chunk(client, service, tag, what));
    let from_backend = |tag, what| world.egress(&chunk(backend, client, tag, what), false);
    from_client(0, (INIT, clients));
    from_backend(clients, (INIT_ACK, backends));
    from_client(GUESS, (COOKIE_ECHO, 0));
    assert_eq!(connection.state(&world), "answered", "the tag is a guess");
    from_client(backends, (COOKIE_ECHO, 0));
    assert_eq!(connection.state(&world), "established");
    from_backend(GUESS, (ABORT, 0));
    assert_eq!(connection.state(&world), "established");
    from_backend(clients, (ABORT, 0));
    assert_eq!(connection.state(&world), "closed");
}

#[rstest]
fn only_a_syn_from_the_clients_own_interface_leaves_a_draining_backend(
    #[values(IPV4, IPV6)] a: Addresses,
    #[values(false, true)] shared: bool,
) {
    let connection = Connection::new(a);
    let mut world = World::new(&[Service::web(a)]);
    world.set_shared(shared);
    connection.establish(&world);
    let other = at(a.other_backend, 8080);
    world.apply(&Service::web(a).backed_by(&[other]));
    let again = world.ingress(&tcp(connection.client, connection.service, Tcp::Syn, b""));
    let (counter, backend) = if shared {
        (Counter::ForwardedHit, connection.backend)
    } else {
        (Counter::ForwardedNew, other)
    };
    assert_eq!((again.counter, again.dst()), (counter, backend));
}

#[rstest]
fn a_client_gets_a_flow_though_forged_flows_use_all_its_tuples(#[values(IPV4, IPV6)] a: Addresses) {
    const PORTS: std::ops::RangeInclusive<u16> = 5000..=5003;
    let connection = Connection::new(a);
    let mut world = World::new(&[Service::web(a)]);
    let ranges = [*PORTS.start(), *PORTS.end(), 0, 0];
    world.configure(|settings| settings.masquerade_ports = PortRanges(ranges));
    world.set_shared(true);
    // The client's own port, and all the ports that its flow may get instead.
    for port in PORTS.chain([connection.client.port()]) {
        let forged = tcp(at(a.pod, port), connection.service, Tcp::Syn, b"");
        assert_eq!(world.ingress(&forged).counter, Counter::ForwardedNew);
    }
    world.set_shared(false);
    let own = world.ingress(&tcp(connection.client, connection.service, Tcp::Syn, b""));
    assert_eq!(own.counter, Counter::ForwardedNew);
    let answer = tcp(connection.backend, own.src(), Tcp::SynAck, b"");
    let answer = world.egress(&answer, false);
    assert_eq!(answer.counter, Counter::ReplyTranslated);
    assert_eq!(answer.dst(), connection.client);
}

#[rstest]
fn repeated_direct_syns_to_a_backend_pass_to_the_next_program(#[values(IPV4, IPV6)] a: Addresses) {
    let connection = Connection::new(a);
    let world = World::new(&[Service::web(a)]);
    for _ in 0..5 {
        let syn = world.ingress(&tcp(connection.client, connection.backend, Tcp::Syn, b""));
        assert_eq!(syn.verdict, NEXT, "the next program sees it");
        assert_eq!(syn.counter, Counter::Untouched);
    }
}
