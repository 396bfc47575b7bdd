// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packets that XDP passes to tc: unchanged, and counted by tc only.

use proxy_common::{
    FlowEntry, FlowKind, FlowState, Port, V4, maps,
    xdp::{Abilities, Uplink},
};
use rstest::rstest;

use super::node::{INSIDE, INSIDE_MAC, Node, OUTSIDE};
use crate::packets::{NODE_MAC, Tcp, at, raw, tcp, udp};

#[rstest]
fn segments_that_change_a_flow_and_packets_of_none(#[values(false, true)] v6: bool) {
    let node = Node::new(v6, false);
    let source = node.establish();
    let (client, service, backend) = (node.client(), node.service(), node.backend());
    for flags in [Tcp::Syn, Tcp::SynAck, Tcp::Fin, Tcp::Rst] {
        node.left(&tcp(client, service, flags, b""), OUTSIDE);
        node.left(&tcp(backend, source, flags, b""), INSIDE);
    }
    let other = at(client.ip(), 40_001);
    node.left(&tcp(other, service, Tcp::Ack, b""), OUTSIDE);
    node.left(&udp(client, service, b""), OUTSIDE);
    node.left(&raw(client.ip(), service.ip(), 132, &[0; 40]), OUTSIDE);
    node.left(&raw(client.ip(), service.ip(), 6, &[0; 12]), OUTSIDE);
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Frame {
    SomebodyElses,
    Broadcast,
    Tagged,
    CutShort,
    Fragment,
    LaterFragment,
    Options,
}

#[rstest]
fn frames_that_only_the_stack_may_judge(
    #[values(
        Frame::SomebodyElses,
        Frame::Broadcast,
        Frame::Tagged,
        Frame::CutShort,
        Frame::Fragment,
        Frame::LaterFragment,
        Frame::Options
    )]
    frame: Frame,
) {
    let node = Node::new(false, false);
    node.establish();
    let mut packet = node.question(b"payload");
    node.taken(&packet, OUTSIDE);
    match frame {
        Frame::SomebodyElses => packet[5] ^= 0xf0,
        Frame::Broadcast => packet[..6].fill(0xff),
        Frame::Tagged => drop(packet.splice(12..12, [0x81, 0, 0, 5])),
        Frame::CutShort => packet.truncate(packet.len() - 1),
        Frame::Fragment => packet[20] |= 0x20,
        Frame::LaterFragment => packet[21] = 1,
        Frame::Options => packet[14] = 0x46,
    }
    node.left(&packet, OUTSIDE);
}

/// The property that makes an entry unfit for XDP.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Entry {
    /// The entry was made by an older version.
    WithoutChoice,
    NeedsStack,
    Closing,
    NotMasqueraded,
    Torn,
}

#[rstest]
fn flows_that_are_not_settled(
    #[values(
        Entry::WithoutChoice,
        Entry::NeedsStack,
        Entry::Closing,
        Entry::NotMasqueraded,
        Entry::Torn
    )]
    entry: Entry,
) {
    let node = Node::new(false, false);
    let source = node.establish();
    let (question, answer) = (node.question(b""), node.answer(source, b""));
    node.taken(&question, OUTSIDE);
    node.taken(&answer, INSIDE);
    let change = |flow: &mut FlowEntry<V4>| match entry {
        Entry::WithoutChoice if flow.kind != FlowKind::REPLY => flow.masquerade_port = Port::ANY,
        Entry::NeedsStack => flow.flags |= FlowEntry::<V4>::NEEDS_STACK,
        Entry::Closing => flow.state = flow.state.with(FlowState::RESET),
        Entry::NotMasqueraded => flow.flags = 0,
        _ => {}
    };
    if entry == Entry::Torn {
        node.world.tear_flows();
    } else {
        node.world
            .change_flows::<V4>(maps::FLOWS_V4, |_, flow| change(flow));
    }
    node.left(&question, OUTSIDE);
    if !matches!(entry, Entry::Closing | Entry::NotMasqueraded) {
        node.left(&answer, INSIDE);
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Obstacle {
    NoNeighbour,
    NoRoute,
    NoForwarding,
    NotPermittedIn,
    NotPermittedOut,
    ToThisNode,
}

#[rstest]
fn ways_that_only_the_stack_knows(
    #[values(false, true)] v6: bool,
    #[values(
        Obstacle::NoNeighbour,
        Obstacle::NoRoute,
        Obstacle::NoForwarding,
        Obstacle::NotPermittedIn,
        Obstacle::NotPermittedOut,
        Obstacle::ToThisNode
    )]
    way: Obstacle,
) {
    let node = Node::new(v6, false);
    node.establish();
    let question = node.question(b"");
    node.taken(&question, OUTSIDE);
    let backend = node.addresses.backend;
    let length = if v6 { 128 } else { 32 };
    match way {
        Obstacle::NoNeighbour => node.ip(&format!("neigh del {backend} dev inside\n")),
        Obstacle::NoRoute => node.ip(&format!("route del {backend}/{length} dev inside\n")),
        Obstacle::NoForwarding => node.set(&[
            ("ipv4/conf/outside/forwarding", "0"),
            ("ipv6/conf/outside/forwarding", "0"),
        ]),
        Obstacle::NotPermittedIn => {
            let receives = false;
            let word = Uplink::new(
                NODE_MAC,
                Abilities {
                    receives,
                    ..Abilities::ALL
                },
            );
            node.world.set_uplink(OUTSIDE, word);
        }
        Obstacle::NotPermittedOut => {
            let sends = false;
            let word = Uplink::new(
                INSIDE_MAC,
                Abilities {
                    sends,
                    ..Abilities::ALL
                },
            );
            node.world.set_uplink(INSIDE, word);
        }
        Obstacle::ToThisNode => node.ip(&format!("addr add {backend}/{length} dev lo\n")),
    }
    node.world.change_routes();
    node.left(&question, OUTSIDE);
}

#[test]
fn a_datagram_whose_backend_has_gone() {
    let mut node = Node::new(false, true);
    node.establish();
    let question = node.question(b"");
    node.taken(&question, OUTSIDE);
    node.world.remove("web");
    node.left(&question, OUTSIDE);
}

#[test]
fn a_datagram_before_the_client_has_answered_in_turn() {
    let node = Node::new(false, true);
    let (client, service) = (node.client(), node.service());
    let first = udp(client, service, b"first");
    node.left(&first, OUTSIDE);
    node.by_tc(&first);
    node.left(&first, OUTSIDE);
}
