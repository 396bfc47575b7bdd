// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `forwarding: auto`: packets that leave at ingress by the kernel's routes, and packets that
//! are passed to the stack.

mod between_pods;
mod left;
mod node;
mod offload;
mod routes;

use std::net::IpAddr;

use linux::interfaces::PodLink;
use proxy_common::{Counter, maps::interface};
use rstest::rstest;

use crate::{
    packets::{Tcp, at, internet_sum, seen, tcp},
    world::{NEXT, REDIRECT},
};
use node::{Node, OUTSIDE, PODS};

/// The remaining hops of a packet; checks the checksum of an IPv4 header.
fn hops(packet: &[u8]) -> u8 {
    if packet[12..14] == [8, 0] {
        assert_eq!(internet_sum(&[&packet[14..34]]), 0, "the header's checksum");
        packet[22]
    } else {
        packet[21]
    }
}

fn with_hops(mut packet: Vec<u8>, hops: u8) -> Vec<u8> {
    if packet[12..14] == [8, 0] {
        packet[22] = hops;
        packet[24..26].fill(0);
        let sum = internet_sum(&[&packet[14..34]]);
        packet[24..26].copy_from_slice(&sum.to_be_bytes());
    } else {
        packet[21] = hops;
    }
    packet
}

#[rstest]
fn a_connections_packets_leave_both_ways_one_hop_older(#[values(false, true)] v6: bool) {
    let node = Node::new(v6);
    let (client, backend) = (
        at(node.addresses.pod, 40_000),
        at(node.addresses.backend, 8080),
    );
    for (flags, counter) in [
        (Tcp::Syn, Counter::ForwardedNew),
        (Tcp::Ack, Counter::ForwardedHit),
    ] {
        let there = node.ingress(&tcp(client, node.service(), flags, b""), PODS);
        assert_eq!((there.verdict, there.counter), (REDIRECT, counter));
        assert_eq!(
            (seen(&there.packet).src, seen(&there.packet).dst),
            (client, backend)
        );
        assert_eq!(hops(&there.packet), 63);
    }
    let answer = tcp(backend, client, Tcp::SynAck, b"");
    let back = node.ingress(&answer, PODS);
    assert_eq!(
        (back.verdict, back.counter),
        (REDIRECT, Counter::ReplyTranslated)
    );
    assert_eq!(
        (seen(&back.packet).src, seen(&back.packet).dst),
        (node.service(), client)
    );
    assert_eq!(hops(&back.packet), 63);
    let foreign = tcp(
        at(node.addresses.backend, 8080),
        at(node.addresses.outsider, 1),
        Tcp::Ack,
        b"",
    );
    let foreign = node.ingress(&foreign, PODS);
    assert_eq!(
        (foreign.verdict, foreign.counter),
        (NEXT, Counter::Untouched)
    );
    assert_eq!(hops(&foreign.packet), 64);
}

#[rstest]
fn a_masqueraded_clients_packets_leave_both_ways(#[values(false, true)] v6: bool) {
    let node = Node::new(v6);
    let (client, backend) = (
        at(node.addresses.outsider, 40_000),
        at(node.addresses.backend, 8080),
    );
    let there = node.ingress(&tcp(client, node.service(), Tcp::Syn, b""), OUTSIDE);
    assert_eq!(
        (there.verdict, there.marked),
        (REDIRECT, true),
        "egress masquerades it"
    );
    let out = node.world.egress(&there.packet, true);
    let source = seen(&out.packet).src;
    assert_eq!(
        (source.ip(), out.counter),
        (node.addresses.node, Counter::Masqueraded)
    );
    let back = node.ingress(&tcp(backend, source, Tcp::SynAck, b""), PODS);
    assert_eq!(
        (back.verdict, back.counter),
        (REDIRECT, Counter::ReplyUnmasqueraded)
    );
    assert_eq!((seen(&back.packet).dst, hops(&back.packet)), (client, 63));
    let back = node.egress(&back.packet, OUTSIDE);
    assert_eq!(
        (seen(&back.packet).src, back.counter),
        (node.service(), Counter::ReplyTranslated),
        "what changes the flow's state is egress' to account"
    );

    // From now on, ingress does everything.
    for _ in 0..2 {
        let there = node.ingress(&tcp(client, node.service(), Tcp::Ack, b""), OUTSIDE);
        assert_eq!(
            (there.verdict, there.marked, there.counter),
            (REDIRECT, false, Counter::ForwardedHit)
        );
        let ends = seen(&there.packet);
        assert_eq!((ends.src, ends.dst), (source, backend));
        assert_eq!(hops(&there.packet), 63);
    }
    let answers = [
        (Tcp::Ack, Counter::ReplyTranslated),
        (Tcp::Ack, Counter::ReplyTranslated),
        // Egress updates the flow.
        (Tcp::Fin, Counter::ReplyUnmasqueraded),
    ];
    for (flags, counter) in answers {
        let back = node.ingress(&tcp(backend, source, flags, b"data"), PODS);
        assert_eq!((back.verdict, back.counter), (REDIRECT, counter));
        assert_eq!(hops(&back.packet), 63);
        if counter == Counter::ReplyTranslated {
            let ends = seen(&back.packet);
            assert_eq!((ends.src, ends.dst), (node.service(), client));
        }
    }
}

/// The frame gets the link-layer addresses of the pod and the node, without a neighbour lookup.
#[rstest]
fn packets_to_a_pod_that_the_agent_knows_are_handed_to_its_link(#[values(false, true)] v6: bool) {
    let node = Node::new(v6);
    let (client, backend) = (
        at(node.addresses.pod, 40_000),
        at(node.addresses.backend, 8080),
    );
    node.remove("neigh");
    node.remove("route");
    let link = PodLink {
        address: backend.ip(),
        interface: PODS,
        mtu: 1400,
        destination: [2, 0, 0, 0, 7, 9],
        source: [2, 0, 0, 0, 7, 1],
    };
    let mut node = node;
    node.world.set_pods(&[link]);
    let payload = |length: u32| vec![0; (length - headers(backend.ip())) as usize];
    for (length, verdict) in [(1400, REDIRECT), (1401, NEXT)] {
        for flags in [Tcp::Syn, Tcp::Ack] {
            let packet = tcp(client, node.service(), flags, &payload(length));
            let there = node.ingress(&packet, PODS);
            assert_eq!(there.verdict, verdict, "{length} bytes");
            assert_eq!(seen(&there.packet).dst, backend);
            if verdict == REDIRECT {
                assert_eq!(hops(&there.packet), 63);
                assert_eq!(there.packet[..6], link.destination);
                assert_eq!(there.packet[6..12], link.source);
            }
        }
    }
}

/// The reason why a packet is passed to the stack.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Why {
    Expired,
    TooLarge,
    SegmentsTooLarge,
    NoLinkLayer,
    NoRoute,
    SomebodyElses,
    Broadcast,
    Tagged,
}

#[rstest]
fn what_needs_the_stack_is_left_to_it(
    #[values(false, true)] v6: bool,
    #[values(
        Why::Expired,
        Why::TooLarge,
        Why::SegmentsTooLarge,
        Why::NoLinkLayer,
        Why::NoRoute,
        Why::SomebodyElses,
        Why::Broadcast,
        Why::Tagged
    )]
    why: Why,
) {
    let mut node = Node::new(v6);
    let backend = node.addresses.backend;
    let mut segment = 0;
    let mut hop_limit = 64;
    let payload = match why {
        Why::TooLarge => 1401 - headers(backend),
        // Segments one byte larger than the interface takes.
        Why::SegmentsTooLarge => {
            segment = 1401 - headers(backend);
            3000
        }
        _ => 0,
    };
    match why {
        Why::Expired => hop_limit = 1,
        Why::NoLinkLayer => {
            node.remove("neigh");
            node.world
                .set_interface(PODS, interface::REDIRECTS | interface::NO_LINK_LAYER);
        }
        Why::NoRoute => node.remove("route"),
        _ => {}
    }
    let client = at(node.addresses.pod, 40_000);
    let packet = tcp(client, node.service(), Tcp::Syn, &vec![0; payload as usize]);
    let mut packet = with_hops(packet, hop_limit);
    match why {
        Why::SomebodyElses => packet[5] ^= 0xf0,
        Why::Broadcast => packet[..6].fill(0xff),
        // The tag is in the packet because the kernel did not remove it.
        Why::Tagged => drop(packet.splice(12..12, [0x81, 0, 0, 5])),
        _ => {}
    }
    let outcome = node.ingress_by(&packet, PODS, segment);
    assert_eq!(outcome.verdict, NEXT);
    if matches!(why, Why::SomebodyElses | Why::Broadcast) {
        assert_eq!(
            (outcome.counter, outcome.packet),
            (Counter::Untouched, packet)
        );
        return;
    }
    assert_eq!(outcome.counter, Counter::ForwardedNew);
    if why != Why::Tagged {
        let after = &outcome.packet;
        assert_eq!(seen(after).dst.ip(), backend, "translated all the same");
        assert_eq!(hops(after), hop_limit);
    }
}

#[rstest]
fn what_just_fits_the_interface_leaves_whole_or_to_be_cut(#[values(false, true)] v6: bool) {
    let node = Node::new(v6);
    let fits = 1400 - headers(node.addresses.backend);
    for (port, payload, segment) in [(1, fits, 0), (2, 3000, fits)] {
        let client = at(node.addresses.pod, port);
        let packet = tcp(client, node.service(), Tcp::Syn, &vec![0; payload as usize]);
        assert_eq!(node.ingress_by(&packet, PODS, segment).verdict, REDIRECT);
    }
}

/// The kernel resolves the next hop's address and keeps the packet until then.
#[rstest]
fn a_next_hop_need_not_be_resolved(#[values(false, true)] v6: bool) {
    let node = Node::new(v6);
    node.remove("neigh");
    let packet = tcp(
        at(node.addresses.pod, 40_000),
        node.service(),
        Tcp::Syn,
        b"",
    );
    let outcome = node.ingress(&packet, PODS);
    assert_eq!((outcome.verdict, hops(&outcome.packet)), (REDIRECT, 63));
}

/// A pod's frames to a neighbour at its bridge do not have the node's link-layer address. The node
/// forwards them nevertheless.
#[test]
fn a_bridged_pods_frames_leave_whomever_they_are_addressed_to() {
    let mut node = Node::new(false);
    let mut packet = tcp(
        at(node.addresses.pod, 40_000),
        node.service(),
        Tcp::Syn,
        b"",
    );
    packet[5] ^= 0xf0;
    let port = interface::REDIRECTS | interface::BRIDGE_PORT;
    node.world.set_interface(PODS, port);
    assert_eq!(node.ingress(&packet, PODS).verdict, NEXT);
    node.world.set_interface(PODS, port | interface::VETH_PORT);
    assert_eq!(node.ingress(&packet, PODS).verdict, REDIRECT);
}

/// The length of the IP and TCP headers.
fn headers(family: IpAddr) -> u32 {
    if family.is_ipv4() { 40 } else { 60 }
}
