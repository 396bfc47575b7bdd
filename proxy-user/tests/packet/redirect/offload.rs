// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A packet of a flow leaves past the stack only by a fresh record of its direction: see also
//! tests/fuzz/cases/past.txt. Which packets a record lets pass is decided in
//! `proxy_common::flow::offload`.

use linux::now;
use proxy_common::{FlowKind, flow::Offload, maps::interface};

use super::{link, node};
use crate::{
    node::{INSIDE, Node, OUTSIDE},
    packets::{Tcp, tcp},
    service::IPV4,
    world::{NEXT, REDIRECT},
};

const UNIT: u64 = 1 << 32;

/// A node with a connection of the client to the service.
fn established() -> Node {
    let node = node(*IPV4);
    super::establish(&node, node.client());
    node
}

fn send(node: &Node, there: bool, flags: Tcp) -> u32 {
    super::send(node, node.client(), there, flags)
}

/// Whether one direction's last packet has noted that it asks the stack.
fn has_asked(node: &Node, kind: FlowKind) -> bool {
    let now = now();
    let asked = [Offload::asked(now), Offload::asked(now - UNIT)];
    let flows = node.world.all_flows();
    let mut of_kind = flows.iter().filter(|entry| entry.kind == kind);
    of_kind.any(|entry| asked.contains(&entry.offload))
}

#[test]
fn a_packet_without_a_usable_record_asks_once_in_a_time_unit() {
    let node = established();
    for (kind, there) in [(FlowKind::ORIGINAL, true), (FlowKind::REPLY, false)] {
        node.record(kind, INSIDE, 3 * UNIT);
        assert_eq!(send(&node, there, Tcp::Ack), NEXT, "{kind:?}");
        assert!(has_asked(&node, kind), "{kind:?}");
    }
    // What the stack sends elsewhere than the FIB says would ask with every packet.
    node.record(FlowKind::ORIGINAL, OUTSIDE, 0);
    assert_eq!(send(&node, true, Tcp::Ack), NEXT);
    assert!(has_asked(&node, FlowKind::ORIGINAL));
}

/// Past the stack no reverse path filter would see it.
#[test]
fn a_reply_from_another_interface_than_its_pods_takes_the_stack() {
    let mut node = established();
    node.record(FlowKind::REPLY, INSIDE, 0);
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
    let node = established();
    node.record(FlowKind::REPLY, INSIDE, 0);
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
