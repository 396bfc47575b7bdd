// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The programs in shadow mode: they count what they would do, and every packet passes unchanged.

use proxy_common::{Counter, Protocol, ServiceFlags, Settings};
use rstest::rstest;

use crate::{
    echo::request,
    fragments::fragments,
    packets::{Tcp, at, tcp, udp},
    service::{Addresses, IPV4, IPV6, Service},
    world::{NEXT, World},
};

fn shadow(services: &[Service]) -> World {
    World::with(|options| options.shadow = true, services)
}

/// Sends a packet in and expects that it comes out unchanged.
#[track_caller]
fn expect(world: &World, packet: &[u8], counter: Counter) {
    let outcome = world.ingress(packet);
    assert_eq!(outcome.fate(), (NEXT, counter));
    assert_eq!(outcome.packet, packet);
    assert!(!outcome.marked);
}

#[test]
fn shadow_programs_load_with_fewer_verified_instructions() {
    let (world, serving) = (shadow(&[]), World::new(&[]));
    assert_eq!(world.refusals(), []);
    for program in ["ingress", "egress", "ingress_l3", "egress_l3"] {
        let count = |world: &World| world.verified_instructions(program);
        assert!(count(&world) < count(&serving), "{program}");
    }
}

#[rstest]
fn in_shadow_mode_connections_pass_untranslated_and_begin_no_flow(
    #[values(IPV4, IPV6)] a: Addresses,
) {
    let held = Service {
        affinity: 100,
        ..Service::web(a)
    };
    let world = shadow(&[held]);
    let service = a.service();
    for client in [a.client(), a.outside_client()] {
        let segment = |flags| tcp(client, service, flags, b"x");
        expect(&world, &segment(Tcp::Syn), Counter::ForwardedNew);
        // The proxy that serves knows the connection.
        for flags in [Tcp::Ack, Tcp::Fin, Tcp::Rst] {
            expect(&world, &segment(flags), Counter::Untouched);
        }
        let reply = tcp(a.endpoint(), client, Tcp::SynAck, b"");
        let outcome = world.egress(&reply, false);
        assert_eq!((outcome.verdict, outcome.packet), (NEXT, reply));
    }
    assert_eq!(world.entries(a.is_v6()), 0);
    assert_eq!(world.held_clients(), 0);
}

#[rstest]
fn in_shadow_mode_packets_that_would_be_refused_are_counted_and_pass(
    #[values(IPV4, IPV6)] a: Addresses,
) {
    let empty = Service::cluster_ip("empty", Protocol::UDP, a.other_cluster_ip, &[]);
    let guarded = Service {
        sources: vec!["192.0.2.0/24", "2001:db8:77::/48"],
        ..Service::web(a).at_balancer(a, ServiceFlags::SOURCE_RANGES)
    };
    let world = shadow(&[guarded, empty]);
    let client = a.outside_client();
    let syn = |to| tcp(client, to, Tcp::Syn, b"");
    let datagram = udp(client, at(a.other_cluster_ip, 80), b"?");
    let (unserved, guarded) = (syn(at(a.cluster_ip, 81)), syn(at(a.balancer, 80)));
    expect(&world, &unserved, Counter::RejectedUnserved);
    expect(&world, &datagram, Counter::RejectedNoEndpoint);
    expect(&world, &guarded, Counter::DroppedSource);
    assert_eq!(world.entries(a.is_v6()), 0);
}

#[rstest]
fn in_shadow_mode_a_marked_packet_keeps_its_mark_and_source(#[values(IPV4, IPV6)] a: Addresses) {
    let world = shadow(&[Service::web(a)]);
    let packet = tcp(a.outside_client(), a.endpoint(), Tcp::Syn, b"");
    let outcome = world.egress(&packet, true);
    assert_eq!(outcome.verdict, NEXT);
    assert_eq!(outcome.packet, packet);
    assert!(outcome.marked, "another proxy's rules want it");
}

#[rstest]
fn in_shadow_mode_segments_of_unknown_connections_are_never_reset(
    #[values(IPV4, IPV6)] a: Addresses,
) {
    let mut world = shadow(&[Service::web(a)]);
    world.configure(|settings| settings.flags |= Settings::RESET_UNKNOWN);
    let packet = tcp(a.client(), a.service(), Tcp::Ack, b"x");
    expect(&world, &packet, Counter::Untouched);
}

#[rstest]
fn in_shadow_mode_pings_and_fragments_pass_unchanged(#[values(IPV4, IPV6)] a: Addresses) {
    let mut world = shadow(&[Service::over(Protocol::UDP, a)]);
    world.configure(|settings| settings.flags |= Settings::ANSWER_PING);
    expect(&world, &request(a.pod, a.cluster_ip), Counter::EchoAnswered);
    let [first, second] = fragments(a.client(), a.service(), 7);
    expect(&world, &first, Counter::ForwardedNew);
    // The first fragment was not remembered.
    expect(&world, &second, Counter::Untouched);
}
