// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `forwarding: auto`: packets that leave at ingress by the kernel's routes, and packets that
//! are passed to the stack.

mod between_pods;
mod node;
mod offload;
mod passed_to_stack;
mod routes;

use std::net::IpAddr;

use linux::interfaces::PodLink;
use proxy_common::{Counter, maps::interface};
use rstest::rstest;

use crate::{
    packets::{Tcp, at, hops, tcp, with_hops},
    service::{Addresses, IPV4, IPV6},
    world::{NEXT, REDIRECT},
};
use node::{Node, PODS};

/// The frame gets the link-layer addresses of the pod and the node, without a neighbour lookup.
#[rstest]
fn packets_to_a_known_pod_are_redirected_to_its_link_without_a_route(
    #[values(IPV4, IPV6)] a: Addresses,
) {
    let mut node = Node::new(a);
    let (client, backend) = (node.client(), node.backend());
    node.remove("neigh");
    node.remove("route");
    let link = PodLink {
        address: backend.ip(),
        interface: PODS,
        mtu: 1400,
        destination: [2, 0, 0, 0, 7, 9],
        source: [2, 0, 0, 0, 7, 1],
    };
    node.world.set_pods(&[link]);
    let payload = |length: u32| vec![0; (length - headers(backend.ip())) as usize];
    for (length, verdict) in [(1400, REDIRECT), (1401, NEXT)] {
        for flags in [Tcp::Syn, Tcp::Ack] {
            let packet = tcp(client, node.service(), flags, &payload(length));
            let there = node.ingress(&packet, PODS);
            assert_eq!(there.verdict, verdict, "{length} bytes");
            assert_eq!(there.dst(), backend);
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
}

#[rstest]
fn packets_that_need_the_stack_are_not_redirected(
    #[values(IPV4, IPV6)] a: Addresses,
    #[values(
        Why::Expired,
        Why::TooLarge,
        Why::SegmentsTooLarge,
        Why::NoLinkLayer,
        Why::NoRoute
    )]
    why: Why,
) {
    let mut node = Node::new(a);
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
            let bits = interface::REDIRECTS | interface::NO_LINK_LAYER;
            node.world.set_interface(PODS, bits);
        }
        Why::NoRoute => node.remove("route"),
        _ => {}
    }
    let client = node.client();
    let packet = tcp(client, node.service(), Tcp::Syn, &vec![0; payload as usize]);
    let outcome = node.ingress_by(&with_hops(packet, hop_limit), PODS, segment);
    assert_eq!(outcome.fate(), (NEXT, Counter::ForwardedNew));
    assert_eq!(outcome.dst().ip(), backend, "translated all the same");
    assert_eq!(hops(&outcome.packet), hop_limit);
}

#[rstest]
fn packets_and_segments_of_exactly_the_interface_mtu_are_redirected(
    #[values(IPV4, IPV6)] a: Addresses,
) {
    let node = Node::new(a);
    let fits = 1400 - headers(node.addresses.backend);
    for (port, payload, segment) in [(1, fits, 0), (2, 3000, fits)] {
        let client = at(node.addresses.pod, port);
        let packet = tcp(client, node.service(), Tcp::Syn, &vec![0; payload as usize]);
        assert_eq!(node.ingress_by(&packet, PODS, segment).verdict, REDIRECT);
    }
}

/// The kernel resolves the next hop's address and keeps the packet until then.
#[rstest]
fn packets_to_an_unresolved_next_hop_are_redirected(#[values(IPV4, IPV6)] a: Addresses) {
    let node = Node::new(a);
    node.remove("neigh");
    let packet = tcp(node.client(), node.service(), Tcp::Syn, b"");
    let outcome = node.ingress(&packet, PODS);
    assert_eq!((outcome.verdict, hops(&outcome.packet)), (REDIRECT, 63));
}

/// A pod's frames to a neighbour at its bridge do not have the node's link-layer address. The node
/// forwards them nevertheless.
#[test]
fn a_bridged_pods_frames_to_any_link_layer_address_are_redirected() {
    let mut node = Node::new(IPV4);
    let packet = |flags| tcp(node.client(), node.service(), flags, b"");
    // A flow begins only by a frame to the node.
    assert_eq!(node.ingress(&packet(Tcp::Syn), PODS).verdict, REDIRECT);
    let mut packet = packet(Tcp::Ack);
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
