// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packets that XDP passes to tc: unchanged, and counted by tc only.

use proxy_common::{FlowEntry, FlowKind, FlowState, Port, V4, maps, xdp::Abilities};
use rstest::rstest;

use super::node::{INSIDE, Node, OUTSIDE};
use crate::{
    network::length,
    packets::{Tcp, at, raw, tcp, udp},
    service::{Addresses, IPV4, IPV6},
};

#[rstest]
fn xdp_passes_state_changing_segments_and_packets_of_no_flow_to_tc(
    #[values(IPV4, IPV6)] a: Addresses,
) {
    let node = Node::new(a, false);
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

#[rstest]
#[case::to_somebody_else(|packet: &mut Vec<u8>| packet[5] ^= 0xf0)]
#[case::broadcast(|packet: &mut Vec<u8>| packet[..6].fill(0xff))]
#[case::tagged(|packet: &mut Vec<u8>| drop(packet.splice(12..12, [0x81, 0, 0, 5])))]
#[case::cut_short(|packet: &mut Vec<u8>| packet.truncate(packet.len() - 1))]
#[case::fragment(|packet: &mut Vec<u8>| packet[20] |= 0x20)]
#[case::later_fragment(|packet: &mut Vec<u8>| packet[21] = 1)]
#[case::options(|packet: &mut Vec<u8>| packet[14] = 0x46)]
fn xdp_passes_foreign_tagged_cut_and_fragmented_frames_to_tc(#[case] change: fn(&mut Vec<u8>)) {
    let node = Node::new(IPV4, false);
    node.establish();
    let mut packet = node.question(b"payload");
    node.taken(&packet, OUTSIDE);
    change(&mut packet);
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
fn xdp_passes_packets_with_unfit_flow_entries_to_tc(
    #[values(
        Entry::WithoutChoice,
        Entry::NeedsStack,
        Entry::Closing,
        Entry::NotMasqueraded,
        Entry::Torn
    )]
    entry: Entry,
) {
    let node = Node::new(IPV4, false);
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

const DOES_NOT_RECEIVE: Abilities = Abilities {
    receives: false,
    ..Abilities::ALL
};
const DOES_NOT_SEND: Abilities = Abilities {
    sends: false,
    ..Abilities::ALL
};

#[rstest]
#[case::no_neighbour(|node: &Node| node.remove("neigh"))]
#[case::no_route(|node: &Node| node.remove("route"))]
#[case::no_forwarding(|node: &Node| node.network.set(&[
    ("ipv4/conf/outside/forwarding", "0"),
    ("ipv6/conf/outside/forwarding", "0"),
]))]
#[case::not_permitted_in(|node: &Node| node.permit(OUTSIDE, DOES_NOT_RECEIVE))]
#[case::not_permitted_out(|node: &Node| node.permit(INSIDE, DOES_NOT_SEND))]
#[case::to_this_node(|node: &Node| {
    let (backend, length) = (node.addresses.backend, length(node.addresses));
    node.network.ip(&format!("addr add {backend}/{length} dev lo\n"));
})]
fn xdp_passes_packets_without_a_usable_route_or_interface_to_tc(
    #[values(IPV4, IPV6)] a: Addresses,
    #[case] obstruct: fn(&Node),
) {
    let node = Node::new(a, false);
    node.establish();
    let question = node.question(b"");
    node.taken(&question, OUTSIDE);
    obstruct(&node);
    node.world.change_routes();
    node.left(&question, OUTSIDE);
}

#[test]
fn xdp_passes_a_datagram_of_a_removed_backend_to_tc() {
    let mut node = Node::new(IPV4, true);
    node.establish();
    let question = node.question(b"");
    node.taken(&question, OUTSIDE);
    node.world.remove("web");
    node.left(&question, OUTSIDE);
}

#[test]
fn xdp_passes_datagrams_of_an_unanswered_flow_to_tc() {
    let node = Node::new(IPV4, true);
    let (client, service) = (node.client(), node.service());
    let first = udp(client, service, b"first");
    node.left(&first, OUTSIDE);
    node.by_tc(&first);
    node.left(&first, OUTSIDE);
}
