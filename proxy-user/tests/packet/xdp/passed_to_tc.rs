// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packets that XDP passes to tc: unchanged, and counted by tc only.

use proxy_common::{FlowEntry, FlowKind, FlowState, Port, V4, maps, xdp::Abilities};
use rstest::rstest;

use super::node::{INSIDE, Node, OUTSIDE};
use crate::{
    network::length,
    service::{Addresses, IPV4, IPV6},
};

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
