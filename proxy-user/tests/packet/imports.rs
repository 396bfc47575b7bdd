// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Flows that are imported from nf_conntrack: during the import, and with sequence numbers that
//! nobody has seen.

use std::{thread::sleep, time::Duration};

use proxy_common::{Counter, FlowKind, Protocol, Settings};
use rstest::rstest;

use crate::{
    connection::Connection,
    packets::{Tcp, tcp, udp},
    service::{Addresses, IPV4, IPV6, Service},
    world::{SHOT, World},
};

/// An established connection of one of many clients behind one interface.
fn established(a: Addresses) -> (World, Connection) {
    let world = World::new(&[Service::web(a)]);
    world.set_shared(true);
    let connection = Connection::new(a).establish(&world);
    (world, connection)
}

/// Changes the entries of one kind to another.
fn change_kind(world: &World, from: FlowKind, to: FlowKind) {
    world.change_entries(|kind, _| {
        if *kind == from {
            *kind = to;
        }
    });
}

#[rstest]
fn client_segments_are_dropped_while_their_connection_is_imported(
    #[values(IPV4, IPV6)] a: Addresses,
) {
    let (world, connection) = established(a);
    change_kind(&world, FlowKind::ORIGINAL, FlowKind::HELD);
    for flags in [Tcp::Ack, Tcp::Fin, Tcp::Syn] {
        let outcome = connection.client_sends(&world, flags, (101, 7001));
        assert_eq!(outcome.fate(), (SHOT, Counter::DroppedHeld));
    }
    let reply = connection.backend_sends(&world, Tcp::Ack, (7001, 101));
    assert_eq!(reply.counter, Counter::ReplyTranslated);
    change_kind(&world, FlowKind::HELD, FlowKind::ORIGINAL);
    let sent = connection.client_sends(&world, Tcp::Ack, (101, 7001));
    assert_eq!(sent.counter, Counter::ForwardedHit);
}

#[test]
fn an_unfinished_import_drops_a_connections_segments_for_five_seconds() {
    let a = IPV4;
    let (world, connection) = established(a);
    change_kind(&world, FlowKind::ORIGINAL, FlowKind::HELD);
    let sent = connection.client_sends(&world, Tcp::Ack, (101, 7001));
    assert_eq!(sent.counter, Counter::DroppedHeld);
    sleep(Duration::from_millis(5_100));
    // The packet goes to the proxy that has served the connection.
    let sent = connection.client_sends(&world, Tcp::Ack, (101, 7001));
    assert_eq!(sent.counter, Counter::Untouched);
}

#[rstest]
fn a_connection_without_known_sequence_numbers_closes_normally(
    #[values(IPV4, IPV6)] a: Addresses,
    #[values(false, true)] client_first: bool,
) {
    let (world, connection) = established(a);
    world.change_entries(|_, number| *number = 0);
    if client_first {
        connection.client_sends(&world, Tcp::Fin, (3_000_000_000, 50));
        assert_eq!(connection.state(&world), "closing-by-client");
        connection.backend_sends(&world, Tcp::Fin, (50, 3_000_000_001));
    } else {
        connection.backend_sends(&world, Tcp::Fin, (50, 3_000_000_000));
        assert_eq!(connection.state(&world), "closing-by-backend");
        connection.client_sends(&world, Tcp::Fin, (3_000_000_000, 51));
    }
    assert_eq!(connection.state(&world), "closed");
}

#[rstest]
fn sequence_numbers_of_an_imported_connection_are_learned_from_segments(
    #[values(IPV4, IPV6)] a: Addresses,
) {
    const GUESS: u32 = 0x8000_0000;
    let (world, connection) = established(a);
    world.change_entries(|_, number| *number = 0);
    connection.client_sends(&world, Tcp::Ack, (101, 7001));
    connection.backend_sends(&world, Tcp::Ack, (7001, 101));
    connection.client_sends(&world, Tcp::Rst, (GUESS, 0));
    connection.backend_sends(&world, Tcp::Fin, (GUESS, GUESS));
    assert_eq!(connection.state(&world), "established");
    connection.client_sends(&world, Tcp::Rst, (101, 0));
    assert_eq!(connection.state(&world), "closed");
}

#[rstest]
fn with_datagrams_wait_set_udp_packets_begin_no_flow(#[values(IPV4, IPV6)] a: Addresses) {
    let dns = Service {
        name: "dns",
        ..Service::over(Protocol::UDP, a)
    };
    let mut world = World::new(&[dns, Service::web(a)]);
    let (client, to) = (a.client(), a.service());
    world.configure(|settings| settings.flags |= Settings::DATAGRAMS_WAIT);
    let question = udp(client, to, b"?");
    world.expect_untouched(&question);
    let syn = world.ingress(&tcp(client, to, Tcp::Syn, b""));
    assert_eq!(syn.counter, Counter::ForwardedNew);
    world.configure(|_| {});
    let outcome = world.ingress(&question);
    assert_eq!(outcome.counter, Counter::ForwardedNew);
}
