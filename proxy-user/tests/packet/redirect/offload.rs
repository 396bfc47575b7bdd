// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `forwarding: auto` beside netfilter: a packet of a flow leaves past the stack only by a fresh
//! record of its direction. Test runs cannot show the tag by which egress makes the records, so
//! these tests write them; real traffic makes them in `node::past_the_stack`. Which packets a
//! record lets pass is decided in `proxy_common::flow::offload`.

use std::net::SocketAddr;

use datapath::maps::family::Family;
use linux::now;
use proxy_common::{Counter, FlowKind, Protocol, Settings, V4, flow::Offload, maps::interface};
use rstest::rstest;

use super::link;
use crate::{
    node::{INSIDE, Node, OUTSIDE},
    packets::{Tcp, tcp, udp},
    service::{IPV4, Service},
    world::{NEXT, REDIRECT},
};

const UNIT: u64 = 1 << 32;

/// A node whose stack has filters, and a connection to its service.
struct Filtered {
    node: Node,
    client: SocketAddr,
    backend: SocketAddr,
}

impl Filtered {
    fn new() -> Self {
        let mut node = super::node(IPV4);
        node.world
            .configure(|settings| settings.flags &= !Settings::UNFILTERED);
        Self {
            client: node.client(),
            backend: node.backend(),
            node,
        }
    }
    /// Begins a connection, and sends the client's acknowledgement.
    fn establish(&self) {
        for (there, flags) in [(true, Tcp::Syn), (false, Tcp::SynAck), (true, Tcp::Ack)] {
            assert_eq!(self.send(there, flags), NEXT, "no record yet");
        }
    }
    /// Sends a segment of the connection; returns the verdict.
    fn send(&self, there: bool, flags: Tcp) -> u32 {
        if !there {
            return self.reply(INSIDE, flags);
        }
        let packet = tcp(self.client, self.node.service(), flags, b"");
        self.node.ingress(&packet, INSIDE).verdict
    }
    /// Sends a reply by this interface, which the stack lets pass; returns ingress's verdict.
    fn reply(&self, interface: u32, flags: Tcp) -> u32 {
        let packet = tcp(self.backend, self.client, flags, b"");
        let inside = self.node.ingress(&packet, interface);
        if inside.verdict == NEXT {
            let out = self.node.egress(&inside.packet, 0, INSIDE);
            assert_eq!(out.counter, Counter::ReplyTranslated);
        }
        inside.verdict
    }
    /// Whether one direction's last packet has noted that it asks the stack.
    fn has_asked(&self, kind: FlowKind) -> bool {
        let now = now();
        let asked = [Offload::asked(now), Offload::asked(now - UNIT)];
        let flows = self.node.world.all_flows();
        let mut of_kind = flows.iter().filter(|entry| entry.kind == kind);
        of_kind.any(|entry| asked.contains(&entry.offload))
    }
    /// Records for one direction that a packet came in by `INSIDE` and left by an interface; `age`
    /// in nanoseconds.
    fn record(&self, kind: FlowKind, interface: u32, age: u64) {
        let record = Offload::new(interface, now() - age);
        let client = V4::of_ip(self.client.ip()).expect("IPv4");
        self.node.world.change_flows(false, |key, entry| {
            if (key.src == client || key.dst == client) && entry.kind == kind {
                entry.offload = record;
                if kind != FlowKind::ORIGINAL {
                    entry.slot = INSIDE;
                }
            }
        });
    }
}

#[test]
fn each_direction_leaves_past_the_stack_by_its_own_fresh_record() {
    let world = Filtered::new();
    world.establish();
    assert_eq!(world.send(true, Tcp::Ack), NEXT);
    world.record(FlowKind::ORIGINAL, INSIDE, 0);
    assert_eq!(world.send(true, Tcp::Ack), REDIRECT);
    assert_eq!(world.send(false, Tcp::Ack), NEXT);
    world.record(FlowKind::REPLY, INSIDE, 0);
    assert_eq!(world.send(false, Tcp::Ack), REDIRECT);
    world.record(FlowKind::ORIGINAL, INSIDE, 2 * UNIT);
    assert_eq!(world.send(true, Tcp::Ack), REDIRECT);
    world.record(FlowKind::ORIGINAL, INSIDE, 3 * UNIT);
    assert_eq!(world.send(true, Tcp::Ack), NEXT);
    assert_eq!(world.send(false, Tcp::Ack), REDIRECT);
}

#[test]
fn a_packet_without_a_record_that_is_fresh_and_by_its_route_notes_that_it_asks() {
    for (kind, there) in [(FlowKind::ORIGINAL, true), (FlowKind::REPLY, false)] {
        let world = Filtered::new();
        world.establish();
        world.record(kind, INSIDE, 3 * UNIT);
        assert_eq!(world.send(there, Tcp::Ack), NEXT);
        assert!(world.has_asked(kind), "{kind:?}");
    }
    // What the stack sends elsewhere than the FIB says would ask with every packet.
    let world = Filtered::new();
    world.establish();
    world.record(FlowKind::ORIGINAL, OUTSIDE, 0);
    assert_eq!(world.send(true, Tcp::Ack), NEXT);
    assert!(world.has_asked(FlowKind::ORIGINAL));
}

/// Past the stack no reverse path filter would see it.
#[test]
fn a_reply_from_another_interface_than_its_pods_takes_the_stack() {
    let mut world = Filtered::new();
    world.establish();
    world.record(FlowKind::REPLY, INSIDE, 0);
    assert_eq!(world.send(false, Tcp::Ack), REDIRECT);
    let [elsewhere, here] = [OUTSIDE, INSIDE].map(|at| link(world.backend.ip(), at, 9));
    world.node.world.set_pods(&[elsewhere]);
    assert_eq!(world.send(false, Tcp::Ack), NEXT);
    // Whoever may not be handed packets is still behind its interface only.
    let mut closed = elsewhere;
    closed.mtu = 0;
    world.node.world.set_pods(&[closed]);
    assert_eq!(world.send(false, Tcp::Ack), NEXT);
    world.node.world.set_pods(&[here]);
    assert_eq!(world.send(false, Tcp::Ack), REDIRECT);
}

/// The backend is no pod that the agent knows: another node's, or behind a gateway.
#[test]
fn a_reply_by_another_interface_than_the_recorded_one_takes_the_stack_and_ends_nothing() {
    let world = Filtered::new();
    world.establish();
    world.record(FlowKind::REPLY, INSIDE, 0);
    let forged = |flags| {
        let packet = tcp(world.backend, world.client, flags, b"");
        world.node.ingress(&packet, OUTSIDE).verdict
    };
    let state = || world.node.world.state(world.client, world.node.service());
    for flags in [Tcp::Ack, Tcp::Rst, Tcp::Fin] {
        assert_eq!(forged(flags), NEXT, "{flags:?}");
        assert_eq!(state(), "established", "the stack has not judged it");
    }
    assert_eq!(world.send(false, Tcp::Ack), REDIRECT);
    // To the stack, all ports of a bridge are the bridge.
    let bits = interface::REDIRECTS | interface::BRIDGE_PORT;
    world.node.world.set_port(OUTSIDE, bits, INSIDE);
    let packet = tcp(world.backend, world.client, Tcp::Ack, b"");
    assert_eq!(world.node.ingress(&packet, OUTSIDE).verdict, REDIRECT);
}

#[rstest]
fn syns_fins_and_resets_take_the_stack(#[values(Tcp::Syn, Tcp::Fin, Tcp::Rst)] flags: Tcp) {
    let world = Filtered::new();
    world.establish();
    world.record(FlowKind::ORIGINAL, INSIDE, 0);
    assert_eq!(world.send(true, flags), NEXT);
}

#[test]
fn packets_of_an_unestablished_connection_take_the_stack() {
    let world = Filtered::new();
    assert_eq!(world.send(true, Tcp::Syn), NEXT);
    world.record(FlowKind::ORIGINAL, INSIDE, 0);
    assert_eq!(world.send(true, Tcp::Ack), NEXT, "nobody has answered");
    assert_eq!(world.send(false, Tcp::SynAck), NEXT);
    assert_eq!(world.send(true, Tcp::Ack), NEXT, "this one establishes it");
    assert_eq!(world.send(true, Tcp::Ack), REDIRECT);
}

#[test]
fn tcp_takes_the_stack_if_conntrack_is_not_liberal() {
    let mut world = Filtered::new();
    world.establish();
    world.record(FlowKind::ORIGINAL, INSIDE, 0);
    world.node.world.configure(|settings| {
        settings.flags &= !Settings::UNFILTERED;
        settings.flags |= Settings::TCP_BY_STACK;
    });
    assert_eq!(world.send(true, Tcp::Ack), NEXT);
}

#[test]
fn datagrams_leave_past_the_stack_once_they_are_answered() {
    let mut world = Filtered::new();
    world.node.world.remove("web");
    let service = Service::over(Protocol::UDP, IPV4);
    world.node.world.apply(&service);
    let ask = |world: &Filtered| {
        let packet = udp(world.client, world.node.service(), b"?");
        let outcome = world.node.ingress(&packet, INSIDE);
        assert!([Counter::ForwardedNew, Counter::ForwardedHit].contains(&outcome.counter));
        outcome.verdict
    };
    assert_eq!(ask(&world), NEXT);
    world.record(FlowKind::ORIGINAL, INSIDE, 0);
    assert_eq!(ask(&world), NEXT, "a one-way stream is the stack's");
    let answer = udp(world.backend, world.client, b"!");
    let inside = world.node.ingress(&answer, INSIDE);
    assert_eq!(inside.verdict, NEXT);
    world.node.egress(&inside.packet, 0, INSIDE);
    assert_eq!(ask(&world), REDIRECT);
    world.record(FlowKind::REPLY, INSIDE, 0);
    assert_eq!(world.node.ingress(&answer, INSIDE).verdict, REDIRECT);
}
