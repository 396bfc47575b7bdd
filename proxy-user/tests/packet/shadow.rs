// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The programs in shadow mode: they count what they would do, and every packet passes unchanged.

use proxy_common::{Counter, FrontendKind, Protocol, ServiceFlags, Settings};
use rstest::rstest;

use crate::{
    echo::request,
    fragments::fragments,
    packets::{Tcp, at, tcp, udp},
    service::{Addresses, Service},
    world::{NEXT, World},
};

fn shadow(services: &[Service]) -> World {
    World::with(|options| options.shadow = true, services)
}

/// Sends a packet in and expects that it comes out unchanged.
#[track_caller]
fn expect(world: &World, packet: &[u8], counter: Counter) {
    let outcome = world.ingress(packet);
    assert_eq!((outcome.verdict, outcome.counter), (NEXT, counter));
    assert_eq!(outcome.packet, packet);
    assert!(!outcome.marked);
}

#[test]
fn every_program_loads_and_costs_the_verifier_less_than_one_that_serves() {
    let (world, serving) = (shadow(&[]), World::new(&[]));
    assert_eq!(world.refusals(), []);
    for program in ["ingress", "egress", "ingress_l3", "egress_l3"] {
        let count = |world: &World| world.verified_instructions(program);
        assert!(count(&world) < count(&serving), "{program}");
    }
}

#[rstest]
fn connections_to_a_service_pass_untranslated_and_begin_no_flow(#[values(false, true)] v6: bool) {
    let a = Addresses::of(v6);
    let mut held = Service::web(a);
    held.affinity = 100;
    let world = shadow(&[held]);
    for client in [a.pod, a.outsider] {
        let (client, service) = (at(client, 40_000), at(a.cluster_ip, 80));
        expect(
            &world,
            &tcp(client, service, Tcp::Syn, b""),
            Counter::ForwardedNew,
        );
        // The proxy that serves knows the connection.
        for flags in [Tcp::Ack, Tcp::Fin, Tcp::Rst] {
            expect(
                &world,
                &tcp(client, service, flags, b"x"),
                Counter::Untouched,
            );
        }
        let reply = tcp(at(a.backend, 8080), client, Tcp::SynAck, b"");
        let outcome = world.egress(&reply, false);
        assert_eq!((outcome.verdict, outcome.packet), (NEXT, reply));
    }
    assert_eq!(world.entries(v6), 0);
    assert_eq!(world.held_clients(), 0);
}

#[rstest]
fn what_would_be_refused_is_counted_and_passes(#[values(false, true)] v6: bool) {
    let a = Addresses::of(v6);
    let empty = Service::cluster_ip("empty", Protocol::UDP, a.other_cluster_ip, &[]);
    let mut guarded = Service::web(a);
    let ranges = if v6 {
        "2001:db8:77::/48"
    } else {
        "192.0.2.0/24"
    };
    guarded.sources = vec![ranges];
    let flags = ServiceFlags::SOURCE_RANGES;
    guarded
        .frontends
        .push((Some(a.balancer), 80, FrontendKind::LoadBalancer, flags));
    let world = shadow(&[guarded, empty]);
    let client = at(a.outsider, 40_000);
    let refused = [
        (
            tcp(client, at(a.cluster_ip, 81), Tcp::Syn, b""),
            Counter::RejectedUnserved,
        ),
        (
            udp(client, at(a.other_cluster_ip, 80), b"?"),
            Counter::RejectedNoEndpoint,
        ),
        (
            tcp(client, at(a.balancer, 80), Tcp::Syn, b""),
            Counter::DroppedSource,
        ),
    ];
    for (packet, counter) in refused {
        expect(&world, &packet, counter);
    }
    assert_eq!(world.entries(v6), 0);
}

#[rstest]
fn a_marked_packet_keeps_its_mark_and_its_source(#[values(false, true)] v6: bool) {
    let a = Addresses::of(v6);
    let world = shadow(&[Service::web(a)]);
    let packet = tcp(at(a.outsider, 40_000), at(a.backend, 8080), Tcp::Syn, b"");
    let outcome = world.egress(&packet, true);
    assert_eq!(outcome.verdict, NEXT);
    assert_eq!(outcome.packet, packet);
    assert!(outcome.marked, "another proxy's rules want it");
}

#[rstest]
fn segments_of_unknown_connections_are_never_reset(#[values(false, true)] v6: bool) {
    let a = Addresses::of(v6);
    let mut world = shadow(&[Service::web(a)]);
    world.configure(|settings| settings.flags |= Settings::RESET_UNKNOWN);
    let packet = tcp(at(a.pod, 40_000), at(a.cluster_ip, 80), Tcp::Ack, b"x");
    expect(&world, &packet, Counter::Untouched);
}

#[rstest]
fn pings_and_fragments_are_left_to_others(#[values(false, true)] v6: bool) {
    let a = Addresses::of(v6);
    let datagrams = Service::cluster_ip("dns", Protocol::UDP, a.cluster_ip, &[at(a.backend, 53)]);
    let mut world = shadow(&[datagrams]);
    world.configure(|settings| settings.flags |= Settings::ANSWER_PING);
    expect(&world, &request(a.pod, a.cluster_ip), Counter::EchoAnswered);
    let [first, second] = fragments((a.pod, 40_000), (a.cluster_ip, 80), 7);
    expect(&world, &first, Counter::ForwardedNew);
    // The first fragment was not remembered.
    expect(&world, &second, Counter::Untouched);
}
