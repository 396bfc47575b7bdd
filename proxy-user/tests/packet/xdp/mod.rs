// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `xdp`: packets of known flows between a client and a backend that are both behind uplinks, and
//! all the packets that are passed to tc.

mod node;
mod passed_to_tc;

use proxy_common::{Counter, FlowEntry, FlowKind, FlowState, V4, maps, xdp::Abilities};
use rstest::rstest;

use crate::{
    packets::{NODE_MAC, Tcp, hops, numbered, seen, with_hops},
    service::{Addresses, IPV4, IPV6},
};
use node::{INSIDE, Node, OUTSIDE, REDIRECT, TX};

#[rstest]
fn xdp_translates_source_and_destination_of_a_known_flows_packets(
    #[values(IPV4, IPV6)] a: Addresses,
    #[values(false, true)] udp: bool,
) {
    let node = Node::new(a, udp);
    let source = node.establish();
    let there = node.taken(&node.question(b"from the client"), OUTSIDE);
    assert_eq!(there.fate(), (REDIRECT, Counter::ForwardedByXdp));
    assert_eq!(there.ends(), (source, node.backend()));
    assert_eq!(seen(&there.packet).payload, b"from the client");
    assert_eq!(hops(&there.packet), 63);
    assert_eq!(there.packet[..6], node::BACKEND_MAC);
    assert_eq!(there.packet[6..12], node::INSIDE_MAC);

    let back = node.taken(&node.answer(source, b"from the backend"), INSIDE);
    assert_eq!(back.fate(), (REDIRECT, Counter::ReplyByXdp));
    assert_eq!(back.ends(), (node.service(), node.client()));
    assert_eq!(seen(&back.packet).payload, b"from the backend");
    assert_eq!(hops(&back.packet), 63);
    assert_eq!(back.packet[..6], node::CLIENT_MAC);
}

#[rstest]
fn xdp_sends_packets_back_out_of_the_interface_they_came_in_by(#[values(IPV4, IPV6)] a: Addresses) {
    let node = Node::new(a, false);
    let source = node.establish();
    node.move_backend_outside();
    let there = node.taken(&node.question(b""), OUTSIDE);
    assert_eq!(there.verdict, TX);
    assert_eq!(there.src(), source);
    assert_eq!(there.packet[6..12], NODE_MAC);
    let back = node.taken(&node.answer(source, b""), OUTSIDE);
    assert_eq!(back.fate(), (TX, Counter::ReplyByXdp));
}

#[test]
fn without_xdp_tx_packets_are_redirected_to_the_interface_they_came_in_by() {
    let node = Node::new(IPV4, false);
    node.establish();
    let abilities = Abilities {
        returns: false,
        ..Abilities::ALL
    };
    node.permit(OUTSIDE, abilities);
    node.move_backend_outside();
    assert_eq!(node.taken(&node.question(b""), OUTSIDE).verdict, REDIRECT);
}

#[rstest]
fn packets_taken_by_xdp_are_in_the_traffic_counters(#[values(IPV4, IPV6)] a: Addresses) {
    let node = Node::new(a, false);
    let source = node.establish();
    let before = node.traffic();
    let question = node.question(b"12345");
    let answer = node.answer(source, b"123");
    node.taken(&question, OUTSIDE);
    node.taken(&answer, INSIDE);
    let after = node.traffic();
    assert_eq!(after.packets_in - before.packets_in, 1);
    assert_eq!(after.packets_out - before.packets_out, 1);
    assert_eq!(after.bytes_in - before.bytes_in, question.len() as u64 - 14);
    assert_eq!(after.bytes_out - before.bytes_out, answer.len() as u64 - 14);
    assert_eq!(after.connections, before.connections);
}

/// The entry of this kind of the only flow.
fn entry(node: &Node, kind: FlowKind) -> FlowEntry<V4> {
    let all = node.world.all_flows::<V4>(maps::FLOWS_V4);
    let mut found = all.into_iter().filter(|entry| entry.kind == kind);
    found.next().expect("an entry of this kind")
}

/// Makes all entries look as if no packet had come for two seconds.
fn age(node: &Node) {
    let change = |_: &_, entry: &mut FlowEntry<V4>| entry.last_seen -= 2_000_000_000;
    node.world.change_flows(maps::FLOWS_V4, change);
}

#[test]
fn packets_of_either_direction_at_xdp_update_the_flows_last_seen() {
    let node = Node::new(IPV4, false);
    let source = node.establish();
    node.taken(&node.answer(source, b""), INSIDE);
    for by_client in [true, false] {
        age(&node);
        let old = entry(&node, FlowKind::ORIGINAL).last_seen;
        if by_client {
            node.taken(&node.question(b""), OUTSIDE);
        } else {
            node.taken(&node.answer(source, b""), INSIDE);
        }
        let new = entry(&node, FlowKind::ORIGINAL).last_seen;
        assert!(new >= old + 1_000_000_000, "{by_client}: {old}, {new}");
    }
}

#[test]
fn xdp_stores_acknowledged_sequence_numbers_of_both_directions() {
    let node = Node::new(IPV4, false);
    let source = node.establish();
    let ack = |number| numbered(node.client(), node.service(), Tcp::Ack, (1001, number), b"");
    node.taken(&ack(70_000), OUTSIDE);
    assert_eq!(entry(&node, FlowKind::ORIGINAL).sequence, 70_000);
    // An impossible number is ignored.
    node.taken(&ack(1 << 30), OUTSIDE);
    assert_eq!(entry(&node, FlowKind::ORIGINAL).sequence, 70_000);
    // The numbers of replies are stored at least once a mebibyte.
    let mut number = entry(&node, FlowKind::REPLY).sequence;
    for _ in 0..40 {
        number = number.wrapping_add(200_000);
        let answer = numbered(node.backend(), source, Tcp::Ack, (2001, number), b"");
        node.taken(&answer, INSIDE);
        let noted = entry(&node, FlowKind::REPLY).sequence;
        assert!(number.wrapping_sub(noted) <= 1 << 20, "{number} {noted}");
    }
    let far = (2001, number ^ 1 << 31);
    let forged = numbered(node.backend(), source, Tcp::Ack, far, b"");
    node.left(&forged, INSIDE);
}

#[test]
fn tc_accepts_the_fin_of_a_connection_that_xdp_carried() {
    let node = Node::new(IPV4, false);
    let source = node.establish();
    let mut number = 1000_u32;
    for _ in 0..20 {
        number += 900_000;
        let answer = numbered(node.backend(), source, Tcp::Ack, (2001, number), b"");
        node.taken(&answer, INSIDE);
    }
    let fin = numbered(node.client(), node.service(), Tcp::Fin, (number, 2001), b"");
    node.left(&fin, OUTSIDE);
    node.by_tc(&fin);
    let state = entry(&node, FlowKind::ORIGINAL).state;
    assert!(state.has(FlowState::CLIENT_FIN));
}

#[rstest]
fn a_changed_neighbour_is_used_at_once_after_the_agents_new_epoch(
    #[values(IPV4, IPV6)] a: Addresses,
) {
    let node = Node::new(a, false);
    node.establish();
    let there = node.taken(&node.question(b""), OUTSIDE);
    assert_eq!(there.packet[..6], node::BACKEND_MAC);
    node.set_backend_mac("02:00:00:00:00:77");
    node.world.change_routes();
    let there = node.taken(&node.question(b""), OUTSIDE);
    assert_eq!(there.packet[..6], [2, 0, 0, 0, 0, 0x77]);
}

#[test]
fn without_an_agent_a_changed_neighbour_is_used_after_a_second() {
    let node = Node::new(IPV4, false);
    node.establish();
    node.taken(&node.question(b""), OUTSIDE);
    node.set_backend_mac("02:00:00:00:00:77");
    std::thread::sleep(std::time::Duration::from_millis(1100));
    // The first packet goes to the stack, which thereby sees that the neighbour is in use.
    let there = node.taken(&node.question(b""), OUTSIDE);
    assert_eq!(there.packet[..6], [2, 0, 0, 0, 0, 0x77]);
}

#[test]
fn xdp_takes_packets_up_to_the_route_mtu_with_a_hop_limit_above_one() {
    let node = Node::new(IPV4, true);
    node.establish();
    let fits = node.question(&[0; 1400 - 28]);
    assert_eq!(node.taken(&fits, OUTSIDE).verdict, REDIRECT);
    node.left(&node.question(&[0; 1401 - 28]), OUTSIDE);
    node.left(&with_hops(node.question(b""), 1), OUTSIDE);
    let two = node.taken(&with_hops(node.question(b""), 2), OUTSIDE);
    assert_eq!(hops(&two.packet), 1);
}
