// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `answerPing`: ICMP echo requests to services' addresses.

use std::net::IpAddr;

use proxy_common::{Counter, FrontendKind, Protocol, Settings};
use rstest::rstest;

use crate::{
    packets::{CLIENT_MAC, NODE_MAC, at, internet_sum, raw},
    service::{Addresses, Service},
    world::{LOOPBACK, NEXT, REDIRECT, SHOT, World},
};

const DATA: &[u8] = b"sixteen and more bytes, an odd number of them";

/// A node with a service that has a cluster IP, a load balancer IP, and an external IP that is an
/// address of the node.
fn world(a: Addresses) -> World {
    let service = Service::cluster_ip("web", Protocol::TCP, a.cluster_ip, &[at(a.backend, 8080)])
        .with(Some(a.balancer), 80, FrontendKind::LoadBalancer, 0)
        .with(Some(a.balancer), 0, FrontendKind::Echo, 0)
        .with(Some(a.other_node_address), 0, FrontendKind::Echo, 0);
    let mut world = World::new(&[service]);
    world.configure(|settings| settings.flags |= Settings::ANSWER_PING);
    world
}

/// An ICMP echo message with its checksum.
fn echo(src: IpAddr, dst: IpAddr, reply: bool) -> Vec<u8> {
    let kind = match (src.is_ipv6(), reply) {
        (false, false) => 8,
        (false, true) => 0,
        (true, false) => 128,
        (true, true) => 129,
    };
    let mut message = vec![kind, 0, 0, 0, 0x12, 0x34, 0, 7];
    message.extend(DATA);
    let checksum = checksum(src, dst, &message).to_be_bytes();
    message[2..4].copy_from_slice(&checksum);
    message
}

/// The checksum of an ICMP message; 0 if the message contains a correct one.
fn checksum(src: IpAddr, dst: IpAddr, message: &[u8]) -> u16 {
    match (src, dst) {
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let length = u32::try_from(message.len()).expect("short").to_be_bytes();
            let pseudo = [&src.octets()[..], &dst.octets(), &length, &[0, 0, 0, 58]].concat();
            internet_sum(&[&pseudo, message])
        }
        _ => internet_sum(&[message]),
    }
}

pub(crate) fn request(src: IpAddr, dst: IpAddr) -> Vec<u8> {
    let protocol = if src.is_ipv6() { 58 } else { 1 };
    raw(src, dst, protocol, &echo(src, dst, false))
}

fn expect_untouched(world: &World, packet: &[u8]) {
    let outcome = world.ingress(packet);
    assert_eq!(
        (outcome.verdict, outcome.counter),
        (NEXT, Counter::Untouched)
    );
    assert_eq!(outcome.packet, packet);
}

#[rstest]
fn a_ping_to_a_services_address_is_answered(#[values(false, true)] v6: bool) {
    let a = Addresses::of(v6);
    let world = world(a);
    for address in [a.cluster_ip, a.balancer] {
        let outcome = world.ingress(&request(a.outsider, address));
        assert_eq!(
            (outcome.verdict, outcome.counter),
            (REDIRECT, Counter::EchoAnswered)
        );
        let packet = outcome.packet;
        assert_eq!(
            (&packet[..6], &packet[6..12]),
            (&CLIENT_MAC[..], &NODE_MAC[..])
        );
        let headers = etherparse::PacketHeaders::from_ethernet_slice(&packet).expect("a packet");
        // `addresses` checks the checksum of the IPv4 header too.
        assert_eq!(
            crate::packets::addresses(&headers),
            (address, a.outsider),
            "back to the client"
        );
        let message = &packet[if v6 { 54 } else { 34 }..];
        assert_eq!(
            message,
            echo(address, a.outsider, true),
            "identifier, sequence number and data stay, and the checksum is right"
        );
        assert_eq!(checksum(address, a.outsider, message), 0);
    }
}

#[rstest]
fn pings_pass_by_default(#[values(false, true)] v6: bool) {
    let a = Addresses::of(v6);
    let mut world = world(a);
    world.configure(|_| {});
    for address in [a.cluster_ip, a.balancer] {
        expect_untouched(&world, &request(a.outsider, address));
    }
}

#[rstest]
fn pings_to_others_and_what_is_no_plain_ping_pass(#[values(false, true)] v6: bool) {
    let a = Addresses::of(v6);
    let mut world = world(a);
    for address in [a.node, a.other_node_address, a.other_cluster_ip, a.backend] {
        expect_untouched(&world, &request(a.outsider, address));
    }
    let answer = echo(a.outsider, a.cluster_ip, true);
    let protocol = if v6 { 58 } else { 1 };
    expect_untouched(&world, &raw(a.outsider, a.cluster_ip, protocol, &answer));
    let whole = request(a.outsider, a.cluster_ip);
    let fragment = if v6 {
        // A first fragment: next header, offset 0 with the flag "more", identification.
        let payload = [&[58, 0, 0, 1, 0, 0, 0, 9], &whole[54..]].concat();
        raw(a.outsider, a.cluster_ip, 44, &payload)
    } else {
        let mut fragment = whole.clone();
        fragment[20] = 0x20;
        fragment[24..26].fill(0);
        let sum = internet_sum(&[&fragment[14..34]]);
        fragment[24..26].copy_from_slice(&sum.to_be_bytes());
        fragment
    };
    expect_untouched(&world, &fragment);
    let mut longer_than_it_is = whole.clone();
    longer_than_it_is.truncate(whole.len() - 1);
    expect_untouched(&world, &longer_than_it_is);
    // Now the frame is for another machine.
    world.set_interface(LOOPBACK, 0);
    expect_untouched(&world, &whole);
}

#[test]
fn answers_to_pings_are_rate_limited() {
    let a = Addresses::of(false);
    let world = world(a);
    let packet = request(a.outsider, a.cluster_ip);
    let verdicts: Vec<_> = (0..6_000).map(|_| world.ingress_quietly(&packet)).collect();
    let silent = verdicts.iter().filter(|verdict| **verdict == SHOT).count();
    assert!(verdicts.contains(&REDIRECT) && silent > 0, "{silent}");
}
