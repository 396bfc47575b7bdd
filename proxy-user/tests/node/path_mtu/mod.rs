// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Path MTU discovery through a service: a router that finds a packet too large reports it to an
//! address that it knows, and the sender must learn it, whatever was translated in between.

mod transfer;
mod world;

use proxy_common::Counter;
use rstest::rstest;

use transfer::{Learned, stream};
use world::{NARROW, Side, Through, Where, World};

#[rstest]
fn both_ends_learn_the_path_mtu_of_a_narrow_link(
    #[values(false, true)] v6: bool,
    #[values(
        Through::NodeSocket,
        Through::PodSocket,
        Through::PodPackets,
        Through::Masquerade,
        Through::Preserved,
        Through::ToNode
    )]
    through: Through,
) {
    let world = World::new(v6, through);
    let is_backend_here = matches!(through, Through::Preserved | Through::ToNode);
    if !is_backend_here {
        let is_translated = !through.is_at_the_socket();
        check(&world, Side::Backend, Where::Router, is_translated);
        // If the node's own link is narrow, a process of the node asks for small packets from the
        // start.
        if through != Through::NodeSocket {
            check(&world, Side::Backend, Where::Node, is_translated);
        }
    }
    if through.is_from_outside() {
        check(&world, Side::Client, Where::Router, true);
        // The node's own error to a backend pod quotes the packet as the pod knows it: nothing is
        // translated.
        if through != Through::ToNode {
            let is_translated = through == Through::Masquerade;
            check(&world, Side::Client, Where::Node, is_translated);
        }
    }
}

/// Checks that both ends of a TCP connection learn of the narrow link. What becomes of errors about
/// datagrams is in tests/fuzz/cases/errors.txt.
fn check(world: &World, side: Side, at: Where, is_translated: bool) {
    world.narrow(side, at);
    let before = world.count(Counter::IcmpTranslated);
    let learned = stream(world).unwrap_or_else(|error| panic!("{side:?}'s {at:?}: {error}"));
    let both = Learned {
        client: NARROW,
        backend: NARROW,
    };
    assert_eq!(learned, both, "TCP, narrow at the {side:?}'s {at:?}");
    let translated = world.count(Counter::IcmpTranslated) - before;
    assert_eq!(translated > 0, is_translated, "errors: {side:?}'s {at:?}");
    let is_masqueraded = world.count(Counter::Masqueraded) > 0;
    assert_eq!(is_masqueraded, world.through == Through::Masquerade);
}
