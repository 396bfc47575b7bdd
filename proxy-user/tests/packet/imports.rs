// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Flows that are imported from nf_conntrack: during the import, and with sequence numbers that
//! nobody has seen.

use std::{thread::sleep, time::Duration};

use proxy_common::{Counter, FlowKind, Protocol, Settings};
use rstest::rstest;

use crate::{
    packets::{Tcp, at, numbered, tcp, udp},
    service::{Addresses, Service},
    world::{NEXT, SHOT, World},
};

/// An established connection of one of many clients behind one interface.
fn established(a: Addresses) -> World {
    let world = World::new(&[Service::cluster_ip(
        "web",
        Protocol::TCP,
        a.cluster_ip,
        &[at(a.backend, 8080)],
    )]);
    world.set_shared(true);
    from_client(&world, a, Tcp::Syn, (100, 0));
    from_backend(&world, a, Tcp::SynAck, (7000, 101));
    from_client(&world, a, Tcp::Ack, (101, 7001));
    assert_eq!(state(&world), "established");
    world
}

fn from_client(world: &World, a: Addresses, flags: Tcp, numbers: (u32, u32)) -> (u32, Counter) {
    let (client, service) = (at(a.pod, 40_000), at(a.cluster_ip, 80));
    let outcome = world.ingress(&numbered(client, service, flags, numbers, b""));
    (outcome.verdict, outcome.counter)
}

fn from_backend(world: &World, a: Addresses, flags: Tcp, numbers: (u32, u32)) -> Counter {
    let (backend, client) = (at(a.backend, 8080), at(a.pod, 40_000));
    let packet = numbered(backend, client, flags, numbers, b"");
    world.egress(&packet, false).counter
}

fn state(world: &World) -> &'static str {
    world.flows().first().map_or("none", |flow| flow.state)
}

#[rstest]
fn segments_are_dropped_while_their_connection_changes_over(#[values(false, true)] v6: bool) {
    let a = Addresses::of(v6);
    let world = established(a);
    world.change_entries(|kind, _| {
        if *kind == FlowKind::ORIGINAL {
            *kind = FlowKind::HELD;
        }
    });
    for flags in [Tcp::Ack, Tcp::Fin, Tcp::Syn] {
        let outcome = from_client(&world, a, flags, (101, 7001));
        assert_eq!(outcome, (SHOT, Counter::DroppedHeld));
    }
    let reply = from_backend(&world, a, Tcp::Ack, (7001, 101));
    assert_eq!(reply, Counter::ReplyTranslated);
    world.change_entries(|kind, _| {
        if *kind == FlowKind::HELD {
            *kind = FlowKind::ORIGINAL;
        }
    });
    let (_, counter) = from_client(&world, a, Tcp::Ack, (101, 7001));
    assert_eq!(counter, Counter::ForwardedHit);
}

#[test]
fn an_import_that_never_ends_holds_a_connection_for_five_seconds() {
    let a = Addresses::of(false);
    let world = established(a);
    world.change_entries(|kind, _| {
        if *kind == FlowKind::ORIGINAL {
            *kind = FlowKind::HELD;
        }
    });
    let (_, counter) = from_client(&world, a, Tcp::Ack, (101, 7001));
    assert_eq!(counter, Counter::DroppedHeld);
    sleep(Duration::from_millis(5_100));
    // The packet goes to the proxy that has served the connection.
    let (_, counter) = from_client(&world, a, Tcp::Ack, (101, 7001));
    assert_eq!(counter, Counter::Untouched);
}

#[rstest]
fn a_connection_whose_numbers_nobody_has_seen_ends_as_others_do(
    #[values(false, true)] v6: bool,
    #[values(false, true)] client_first: bool,
) {
    let a = Addresses::of(v6);
    let world = established(a);
    world.change_entries(|_, number| *number = 0);
    if client_first {
        from_client(&world, a, Tcp::Fin, (3_000_000_000, 50));
        assert_eq!(state(&world), "closing-by-client");
        from_backend(&world, a, Tcp::Fin, (50, 3_000_000_001));
    } else {
        from_backend(&world, a, Tcp::Fin, (50, 3_000_000_000));
        assert_eq!(state(&world), "closing-by-backend");
        from_client(&world, a, Tcp::Fin, (3_000_000_000, 51));
    }
    assert_eq!(state(&world), "closed");
}

#[rstest]
fn the_first_segments_tell_the_numbers(#[values(false, true)] v6: bool) {
    const GUESS: u32 = 0x8000_0000;
    let a = Addresses::of(v6);
    let world = established(a);
    world.change_entries(|_, number| *number = 0);
    from_client(&world, a, Tcp::Ack, (101, 7001));
    from_backend(&world, a, Tcp::Ack, (7001, 101));
    from_client(&world, a, Tcp::Rst, (GUESS, 0));
    from_backend(&world, a, Tcp::Fin, (GUESS, GUESS));
    assert_eq!(state(&world), "established");
    from_client(&world, a, Tcp::Rst, (101, 0));
    assert_eq!(state(&world), "closed");
}

#[rstest]
fn datagrams_that_wait_begin_nothing(#[values(false, true)] v6: bool) {
    let a = Addresses::of(v6);
    let service =
        |name, protocol| Service::cluster_ip(name, protocol, a.cluster_ip, &[at(a.backend, 8080)]);
    let mut world = World::new(&[service("dns", Protocol::UDP), service("web", Protocol::TCP)]);
    let (client, to) = (at(a.pod, 40_000), at(a.cluster_ip, 80));
    world.configure(|settings| settings.flags |= Settings::DATAGRAMS_WAIT);
    let question = udp(client, to, b"?");
    let outcome = world.ingress(&question);
    assert_eq!(
        (outcome.verdict, outcome.counter),
        (NEXT, Counter::Untouched)
    );
    assert_eq!(outcome.packet, question);
    let syn = world.ingress(&tcp(client, to, Tcp::Syn, b""));
    assert_eq!(syn.counter, Counter::ForwardedNew);
    world.configure(|_| {});
    let outcome = world.ingress(&question);
    assert_eq!(outcome.counter, Counter::ForwardedNew);
}
