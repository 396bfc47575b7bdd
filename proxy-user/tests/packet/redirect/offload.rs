// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `forwarding: auto` beside netfilter: a packet of a flow leaves past the stack only by a fresh
//! record of its direction. Test runs cannot show the tag by which egress makes the records, so
//! these tests write them; real traffic makes them in `node::past_the_stack`. Which packets a
//! record lets pass is decided in `proxy_common::flow::offload`.

use datapath::maps::family::Family;
use linux::now;
use proxy_common::{Counter, FlowKind, Settings, V4, flow::Offload, maps::interface};

use super::link;
use crate::{
    node::{INSIDE, Node, OUTSIDE},
    packets::{Tcp, tcp},
    service::IPV4,
    world::{NEXT, REDIRECT},
};

const UNIT: u64 = 1 << 32;

/// A node whose stack has filters.
fn filtered() -> Node {
    let mut node = super::node(*IPV4);
    node.world
        .configure(|settings| settings.flags &= !Settings::UNFILTERED);
    node
}

/// Begins a connection to the service, and sends the client's acknowledgement.
fn establish(node: &Node) {
    for (there, flags) in [(true, Tcp::Syn), (false, Tcp::SynAck), (true, Tcp::Ack)] {
        assert_eq!(send(node, there, flags), NEXT, "no record yet");
    }
}

/// Sends a segment of the connection, which the stack lets pass; returns ingress's verdict.
fn send(node: &Node, there: bool, flags: Tcp) -> u32 {
    let (from, to) = match there {
        true => (node.client(), node.service()),
        false => (node.backend(), node.client()),
    };
    let inside = node.ingress(&tcp(from, to, flags, b""), INSIDE);
    if !there && inside.verdict == NEXT {
        let out = node.egress(&inside.packet, 0, INSIDE);
        assert_eq!(out.counter, Counter::ReplyTranslated);
    }
    inside.verdict
}

/// Whether one direction's last packet has noted that it asks the stack.
fn has_asked(node: &Node, kind: FlowKind) -> bool {
    let now = now();
    let asked = [Offload::asked(now), Offload::asked(now - UNIT)];
    let flows = node.world.all_flows();
    let mut of_kind = flows.iter().filter(|entry| entry.kind == kind);
    of_kind.any(|entry| asked.contains(&entry.offload))
}

/// Records for one direction that a packet came in by `INSIDE` and left by an interface; `age`
/// in nanoseconds.
fn record(node: &Node, kind: FlowKind, interface: u32, age: u64) {
    let record = Offload::new(interface, now() - age);
    let client = V4::of_ip(node.client().ip()).expect("IPv4");
    node.world.change_flows(false, |key, entry| {
        if (key.src == client || key.dst == client) && entry.kind == kind {
            entry.offload = record;
            if kind != FlowKind::ORIGINAL {
                entry.came_by = INSIDE;
            }
        }
    });
}

#[test]
fn each_direction_leaves_past_the_stack_by_its_own_fresh_record_and_else_asks() {
    let node = filtered();
    establish(&node);
    for (kind, there) in [(FlowKind::ORIGINAL, true), (FlowKind::REPLY, false)] {
        assert_eq!(send(&node, there, Tcp::Ack), NEXT, "{kind:?}");
        record(&node, kind, INSIDE, 0);
        assert_eq!(send(&node, there, Tcp::Ack), REDIRECT, "{kind:?}");
    }
    for (kind, there) in [(FlowKind::ORIGINAL, true), (FlowKind::REPLY, false)] {
        record(&node, kind, INSIDE, 3 * UNIT);
        assert_eq!(send(&node, there, Tcp::Ack), NEXT, "{kind:?}");
        assert!(has_asked(&node, kind), "{kind:?}");
    }
    // What the stack sends elsewhere than the FIB says would ask with every packet.
    record(&node, FlowKind::ORIGINAL, OUTSIDE, 0);
    assert_eq!(send(&node, true, Tcp::Ack), NEXT);
    assert!(has_asked(&node, FlowKind::ORIGINAL));
}

/// Past the stack no reverse path filter would see it.
#[test]
fn a_reply_from_another_interface_than_its_pods_takes_the_stack() {
    let mut node = filtered();
    establish(&node);
    record(&node, FlowKind::REPLY, INSIDE, 0);
    assert_eq!(send(&node, false, Tcp::Ack), REDIRECT);
    let [elsewhere, here] = [OUTSIDE, INSIDE].map(|at| link(node.backend().ip(), at, 9));
    node.world.set_pods(&[elsewhere]);
    assert_eq!(send(&node, false, Tcp::Ack), NEXT);
    // Whoever may not be handed packets is still behind its interface only.
    let mut closed = elsewhere;
    closed.mtu = 0;
    node.world.set_pods(&[closed]);
    assert_eq!(send(&node, false, Tcp::Ack), NEXT);
    node.world.set_pods(&[here]);
    assert_eq!(send(&node, false, Tcp::Ack), REDIRECT);
}

/// The backend is no pod that the agent knows: another node's, or behind a gateway.
#[test]
fn a_reply_by_another_interface_than_the_recorded_one_takes_the_stack_and_ends_nothing() {
    let node = filtered();
    establish(&node);
    record(&node, FlowKind::REPLY, INSIDE, 0);
    let forged = |flags| {
        let packet = tcp(node.backend(), node.client(), flags, b"");
        node.ingress(&packet, OUTSIDE).verdict
    };
    let state = || node.world.state(node.client(), node.service());
    for flags in [Tcp::Ack, Tcp::Rst, Tcp::Fin] {
        assert_eq!(forged(flags), NEXT, "{flags:?}");
        assert_eq!(state(), "established", "the stack has not judged it");
    }
    assert_eq!(send(&node, false, Tcp::Ack), REDIRECT);
    // To the stack, all ports of a bridge are the bridge.
    let bits = interface::REDIRECTS | interface::BRIDGE_PORT;
    node.world.set_port(OUTSIDE, bits, INSIDE);
    let packet = tcp(node.backend(), node.client(), Tcp::Ack, b"");
    assert_eq!(node.ingress(&packet, OUTSIDE).verdict, REDIRECT);
}
