// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `answerPing`: ICMP echo requests to services' addresses.

use std::net::IpAddr;

use etherparse::PacketHeaders;
use proxy_common::{Counter, FrontendKind, Settings};
use rstest::rstest;

use crate::{
    packets::{CLIENT_MAC, NODE_MAC, addresses, correct_ipv4_header, icmp, icmp_sum, raw},
    service::{Addresses, IPV4, IPV6, Service},
    world::{LOOPBACK, REDIRECT, SHOT, World},
};

const DATA: &[u8] = b"sixteen and more bytes, an odd number of them";

/// A node with a service that has a cluster IP, a load balancer IP, and an external IP that is an
/// address of the node.
fn world(a: Addresses) -> World {
    let service = Service::web(a)
        .at_balancer(a, 0)
        .with(Some(a.balancer), 0, FrontendKind::Echo, 0)
        .with(Some(a.other_node_address), 0, FrontendKind::Echo, 0);
    let mut world = World::new(&[service]);
    world.configure(|settings| settings.flags |= Settings::ANSWER_PING);
    world
}

/// An ICMP echo request or reply.
fn echo(src: IpAddr, dst: IpAddr, reply: bool) -> Vec<u8> {
    let kind = match (src.is_ipv6(), reply) {
        (false, false) => 8,
        (false, true) => 0,
        (true, false) => 128,
        (true, true) => 129,
    };
    let header = [kind, 0, 0, 0, 0x12, 0x34, 0, 7];
    icmp(src, dst, &[&header, DATA].concat())
}

pub(crate) fn request(src: IpAddr, dst: IpAddr) -> Vec<u8> {
    echo(src, dst, false)
}

#[rstest]
fn a_ping_to_a_services_address_is_answered(#[values(IPV4, IPV6)] a: Addresses) {
    let world = world(a);
    for address in [a.cluster_ip, a.balancer] {
        let outcome = world.ingress(&request(a.outsider, address));
        assert_eq!(outcome.fate(), (REDIRECT, Counter::EchoAnswered));
        let packet = outcome.packet;
        assert_eq!(packet[..12], [CLIENT_MAC, NODE_MAC].concat());
        let headers = PacketHeaders::from_ethernet_slice(&packet).expect("a packet");
        // `addresses` checks the checksum of the IPv4 header too.
        assert_eq!(addresses(&headers), (address, a.outsider), "back");
        // Identifier, sequence number and data stay, and the checksum is right.
        let reply = echo(address, a.outsider, true);
        assert_eq!(packet[a.transport()..], reply[a.transport()..]);
        assert_eq!(icmp_sum(&packet), 0);
    }
}

#[rstest]
fn without_answer_ping_only_pings_to_cluster_ips_are_refused(#[values(IPV4, IPV6)] a: Addresses) {
    let mut world = world(a);
    world.configure(|_| {});
    let refused = world.ingress(&request(a.outsider, a.cluster_ip));
    assert_eq!(refused.fate(), (REDIRECT, Counter::RejectedUnserved));
    for address in [a.balancer, a.other_cluster_ip, a.other_node_address] {
        world.expect_untouched(&request(a.outsider, address));
    }
}

#[rstest]
fn pings_that_are_fragmented_cut_or_to_other_addresses_pass(#[values(IPV4, IPV6)] a: Addresses) {
    let mut world = world(a);
    for address in [a.node, a.other_node_address, a.other_cluster_ip, a.backend] {
        world.expect_untouched(&request(a.outsider, address));
    }
    world.expect_untouched(&echo(a.outsider, a.cluster_ip, true));
    let whole = request(a.outsider, a.cluster_ip);
    let fragment = if a.is_v6() {
        // A first fragment: next header, offset 0 with the flag "more", identification.
        let payload = [&[58, 0, 0, 1, 0, 0, 0, 9], &whole[54..]].concat();
        raw(a.outsider, a.cluster_ip, 44, &payload)
    } else {
        let mut fragment = whole.clone();
        fragment[20] = 0x20;
        correct_ipv4_header(&mut fragment);
        fragment
    };
    world.expect_untouched(&fragment);
    let cut_short = &whole[..whole.len() - 1];
    world.expect_untouched(cut_short);
    // Now the frame is for another machine.
    world.set_interface(LOOPBACK, 0);
    world.expect_untouched(&whole);
}

#[test]
fn answers_to_pings_are_rate_limited() {
    let a = IPV4;
    let world = world(a);
    let packet = request(a.outsider, a.cluster_ip);
    let verdicts: Vec<_> = (0..6_000).map(|_| world.ingress_quietly(&packet)).collect();
    let silent = verdicts.iter().filter(|verdict| **verdict == SHOT).count();
    assert!(verdicts.contains(&REDIRECT) && silent > 0, "{silent}");
}
