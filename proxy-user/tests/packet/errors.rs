// SPDX-License-Identifier: Apache-2.0 OR MIT
//! ICMP errors about flows: in both directions, masqueraded or not, as the outer and the quoted
//! packet.

use std::net::{IpAddr, SocketAddr};

use etherparse::PacketHeaders;
use proxy_common::{Counter, Protocol};
use rstest::rstest;

use crate::{
    packets::{Tcp, addresses, at, icmp, icmp_sum, packet_over, seen, tcp, udp},
    service::{Addresses, IPV4, IPV6, Service},
    world::{NEXT, Outcome, SHOT, World},
};

pub(crate) const TOO_BIG: ([u8; 2], [u8; 2]) = ([3, 4], [2, 0]);
const REDIRECT: ([u8; 2], [u8; 2]) = ([5, 1], [137, 0]);

/// An ICMP error from `src` to `dst` that quotes a packet.
pub(crate) fn error(src: IpAddr, dst: IpAddr, kinds: ([u8; 2], [u8; 2]), packet: &[u8]) -> Vec<u8> {
    let v6 = src.is_ipv6();
    let mut message = if v6 { kinds.1 } else { kinds.0 }.to_vec();
    message.extend([0, 0, 0, 0, 5, 120]);
    if v6 && kinds == REDIRECT {
        message.extend([0; 32]);
        message.extend([4, 8, 0, 0, 0, 0, 0, 0]);
    }
    let header = if v6 { 40 } else { 20 };
    message.extend(packet[14..].iter().take(header + 20));
    icmp(src, dst, &message)
}

/// The packet that an error quotes, from its IP header on.
fn quote(error: &[u8]) -> &[u8] {
    let is_v6 = error[12..14] == [0x86, 0xdd];
    &error[14 + if is_v6 { 40 } else { 20 } + 8..]
}

/// Expects an error between these addresses about a packet between these ends; checks every
/// checksum.
#[track_caller]
pub(crate) fn expect_error(outcome: &Outcome, between: [IpAddr; 2], ends: [SocketAddr; 2]) {
    let error = &outcome.packet;
    assert_eq!(icmp_sum(error), 0, "the ICMP checksum");
    let headers = PacketHeaders::from_ethernet_slice(error).expect("a packet");
    assert_eq!(addresses(&headers), between.into());
    let quoted = seen(&[&error[..14], quote(error)].concat());
    assert_eq!([quoted.src, quoted.dst], ends);
}

fn world(a: Addresses) -> World {
    World::new(&[Service::web(a)])
}

#[rstest]
fn a_too_big_error_reaches_the_client_from_the_services_address(
    #[values(IPV4, IPV6)] a: Addresses,
) {
    let world = world(a);
    let (client, service) = (a.client(), a.service());
    let sent = world.ingress(&tcp(client, service, Tcp::Syn, b"")).packet;
    // A router on the path to the backend reports an error about the translated packet.
    let complaint = error(a.other_node_address, client.ip(), TOO_BIG, &sent);
    let inside = world.ingress(&complaint);
    assert_eq!(inside.counter, Counter::ReplyPassed);
    assert_eq!(inside.packet, complaint);
    let outside = world.egress(&inside.packet, false);
    assert_eq!(outside.fate(), (NEXT, Counter::IcmpTranslated));
    expect_error(&outside, [service.ip(), client.ip()], [client, service]);
}

/// RFC 792 requires only the IP header and eight bytes. They come back as the client sent them.
#[rstest]
#[case::tcp(Protocol::TCP)]
#[case::udp(Protocol::UDP)]
fn icmp_errors_that_quote_eight_transport_bytes_are_translated(#[case] protocol: Protocol) {
    const QUOTE: usize = 20 + 8;
    let a = IPV4;
    let world = World::new(&[Service::over(protocol, a)]);
    let (client, service) = (a.client(), a.service());
    let asked = packet_over(protocol, client, service, Tcp::Syn);
    let sent = world.ingress(&asked).packet;
    let sent = &sent[..14 + QUOTE];
    let complaint = error(a.other_node_address, client.ip(), TOO_BIG, sent);
    assert_eq!(complaint.len(), 14 + 20 + 8 + QUOTE);
    let outside = world.egress(&world.ingress(&complaint).packet, false);
    assert_eq!(outside.counter, Counter::IcmpTranslated);
    assert_eq!(*quote(&outside.packet), asked[14..14 + QUOTE]);
    assert_eq!(icmp_sum(&outside.packet), 0, "the ICMP checksum");
}

/// A UDP checksum of 0 is sent as 0xffff, and must be quoted as 0xffff.
#[rstest]
fn a_quoted_udp_checksum_of_0xffff_stays_0xffff(#[values(IPV4, IPV6)] a: Addresses) {
    let service = Service::over(Protocol::UDP, a);
    let world = World::new(&[service]);
    let (client, service) = (a.client(), a.service());
    let field = if a.is_v6() { 60..62 } else { 40..42 };
    let asked = (0..=u16::MAX)
        .map(|n| udp(client, service, &n.to_be_bytes()))
        .find(|packet| packet[field.clone()] == [0xff, 0xff])
        .expect("one of all sums");
    let sent = world.ingress(&asked).packet;
    let complaint = error(a.other_node_address, client.ip(), TOO_BIG, &sent);
    let outside = world.egress(&world.ingress(&complaint).packet, false);
    assert_eq!(outside.counter, Counter::IcmpTranslated);
    assert_eq!(*quote(&outside.packet), asked[14..]);
    assert_eq!(icmp_sum(&outside.packet), 0, "the ICMP checksum");
}

#[rstest]
fn a_too_big_error_about_an_answer_reaches_the_backend(#[values(IPV4, IPV6)] a: Addresses) {
    let world = world(a);
    let (client, service, backend) = a.ends();
    world.ingress(&tcp(client, service, Tcp::Syn, b""));
    let answer = tcp(backend, client, Tcp::SynAck, b"");
    let answer = world.egress(&answer, false).packet;
    let inside = world.ingress(&error(client.ip(), service.ip(), TOO_BIG, &answer));
    assert!(!inside.marked);
    assert_eq!(inside.counter, Counter::IcmpTranslated);
    expect_error(&inside, [client.ip(), backend.ip()], [backend, client]);
}

#[rstest]
fn icmp_errors_about_masqueraded_flows_are_translated_at_both_hooks(
    #[values(IPV4, IPV6)] a: Addresses,
) {
    let world = world(a);
    let (client, service, backend) = (a.outside_client(), a.service(), a.endpoint());
    let sent = world.forward(&tcp(client, service, Tcp::Syn, b"")).packet;
    let source = seen(&sent).src;

    let inside = world.ingress(&error(a.other_node_address, source.ip(), TOO_BIG, &sent));
    expect_error(
        &inside,
        [a.other_node_address, client.ip()],
        [client, backend],
    );
    let outside = world.egress(&inside.packet, inside.marked);
    expect_error(&outside, [service.ip(), client.ip()], [client, service]);

    let syn_ack = tcp(backend, source, Tcp::SynAck, b"");
    let answer = world.ingress(&syn_ack).packet;
    let answer = world.egress(&answer, false).packet;
    let inside = world.ingress(&error(client.ip(), service.ip(), TOO_BIG, &answer));
    assert!(inside.marked);
    let outside = world.egress(&inside.packet, true);
    assert!(!outside.marked);
    expect_error(&outside, [source.ip(), backend.ip()], [backend, source]);

    // An error of this node about the answer quotes the packet with the client's own address.
    let seen_here = world.ingress(&syn_ack).packet;
    let own = world.egress(&error(a.node, backend.ip(), TOO_BIG, &seen_here), false);
    expect_error(&own, [source.ip(), backend.ip()], [backend, source]);
}

#[rstest]
fn an_icmp_redirect_about_a_translated_flow_is_dropped(#[values(IPV4, IPV6)] a: Addresses) {
    let world = world(a);
    let client = a.client();
    let sent = world
        .ingress(&tcp(client, a.service(), Tcp::Syn, b""))
        .packet;
    let outcome = world.egress(&error(a.node, client.ip(), REDIRECT, &sent), false);
    assert_eq!(outcome.fate(), (SHOT, Counter::IcmpRedirectDropped));
    let foreign = tcp(client, at(a.outsider, 80), Tcp::Syn, b"");
    let redirect = error(a.node, client.ip(), REDIRECT, &foreign);
    world.egress(&redirect, false).expect_untouched(&redirect);
}

#[rstest]
fn icmp_errors_about_packets_of_no_flow_pass_unchanged(#[values(IPV4, IPV6)] a: Addresses) {
    let world = world(a);
    let foreign = tcp(a.client(), at(a.outsider, 80), Tcp::Syn, b"");
    let complaint = error(a.outsider, a.pod, TOO_BIG, &foreign);
    for outcome in [world.ingress(&complaint), world.egress(&complaint, false)] {
        outcome.expect_untouched(&complaint);
    }
}
