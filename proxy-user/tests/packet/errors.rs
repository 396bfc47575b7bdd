// SPDX-License-Identifier: Apache-2.0 OR MIT
//! ICMP errors about flows: in both directions, masqueraded or not, as the outer and the quoted
//! packet.

use std::net::{IpAddr, SocketAddr};

use proxy_common::{Counter, Protocol};
use rstest::rstest;

use crate::{
    packets::{Tcp, at, internet_sum, raw, seen, tcp, udp},
    service::{Addresses, Service},
    world::{NEXT, SHOT, World},
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
    let mut error = raw(src, dst, if v6 { 58 } else { 1 }, &message);
    let sum = icmp_sum(&error);
    let at = 14 + header + 2;
    error[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    error
}

/// The remaining sum of a packet: 0 if its ICMP checksum is correct.
fn icmp_sum(packet: &[u8]) -> u16 {
    if packet[12..14] == [0x86, 0xdd] {
        let length = u32::try_from(packet.len() - 54)
            .expect("short")
            .to_be_bytes();
        internet_sum(&[&packet[22..54], &length, &[0, 0, 0, 58], &packet[54..]])
    } else {
        internet_sum(&[&packet[34..]])
    }
}

/// The addresses of an error and the quoted ends; checks every checksum.
pub(crate) fn read(error: &[u8]) -> (IpAddr, IpAddr, SocketAddr, SocketAddr) {
    assert_eq!(icmp_sum(error), 0, "the ICMP checksum");
    let headers = etherparse::PacketHeaders::from_ethernet_slice(error).expect("a packet");
    let (src, dst) = crate::packets::addresses(&headers);
    let inner = if src.is_ipv6() {
        14 + 40 + 8
    } else {
        14 + 20 + 8
    };
    let quote = [&error[..14], &error[inner..]].concat();
    let quoted = seen(&quote);
    (src, dst, quoted.src, quoted.dst)
}

fn world(a: Addresses) -> World {
    World::new(&[Service::cluster_ip(
        "web",
        Protocol::TCP,
        a.cluster_ip,
        &[at(a.backend, 8080)],
    )])
}

#[rstest]
fn a_client_learns_that_its_packet_was_too_big_from_the_service_it_spoke_to(
    #[values(false, true)] v6: bool,
) {
    let a = Addresses::of(v6);
    let world = world(a);
    let (client, service) = (at(a.pod, 40_000), at(a.cluster_ip, 80));
    let sent = world.ingress(&tcp(client, service, Tcp::Syn, b"")).packet;
    // A router on the path to the backend reports an error about the translated packet.
    let complaint = error(a.other_node_address, client.ip(), TOO_BIG, &sent);
    let inside = world.ingress(&complaint);
    assert_eq!(
        (&inside.packet, inside.counter),
        (&complaint, Counter::ReplyPassed)
    );
    let outside = world.egress(&inside.packet, false);
    assert_eq!(
        (outside.verdict, outside.counter),
        (NEXT, Counter::IcmpTranslated)
    );
    assert_eq!(
        read(&outside.packet),
        (service.ip(), client.ip(), client, service)
    );
}

/// RFC 792 requires only the IP header and eight bytes. They come back as the client sent them.
#[rstest]
#[case::tcp(Protocol::TCP)]
#[case::udp(Protocol::UDP)]
fn eight_quoted_bytes_are_enough(#[case] protocol: Protocol) {
    const QUOTE: usize = 20 + 8;
    let a = Addresses::of(false);
    let backends = [at(a.backend, 8080)];
    let world = World::new(&[Service::cluster_ip(
        "web",
        protocol,
        a.cluster_ip,
        &backends,
    )]);
    let (client, service) = (at(a.pod, 40_000), at(a.cluster_ip, 80));
    let asked = match protocol {
        Protocol::TCP => tcp(client, service, Tcp::Syn, b""),
        _ => udp(client, service, b"question"),
    };
    let sent = world.ingress(&asked).packet;
    let complaint = error(
        a.other_node_address,
        client.ip(),
        TOO_BIG,
        &sent[..14 + QUOTE],
    );
    assert_eq!(complaint.len(), 14 + 20 + 8 + QUOTE);
    let outside = world.egress(&world.ingress(&complaint).packet, false);
    assert_eq!(outside.counter, Counter::IcmpTranslated);
    assert_eq!(outside.packet[14 + 20 + 8..], asked[14..14 + QUOTE]);
    assert_eq!(icmp_sum(&outside.packet), 0, "the ICMP checksum");
}

/// A UDP checksum of 0 is sent as 0xffff, and must be quoted as 0xffff.
#[rstest]
fn a_quoted_datagrams_checksum_of_zero_keeps_its_spelling(#[values(false, true)] v6: bool) {
    let a = Addresses::of(v6);
    let service = Service::cluster_ip("web", Protocol::UDP, a.cluster_ip, &[at(a.backend, 8080)]);
    let world = World::new(&[service]);
    let (client, service) = (at(a.pod, 40_000), at(a.cluster_ip, 80));
    let field = if v6 { 60..62 } else { 40..42 };
    let asked = (0..=u16::MAX)
        .map(|n| udp(client, service, &n.to_be_bytes()))
        .find(|packet| packet[field.clone()] == [0xff, 0xff])
        .expect("one of all sums");
    let sent = world.ingress(&asked).packet;
    let complaint = error(a.other_node_address, client.ip(), TOO_BIG, &sent);
    let outside = world.egress(&world.ingress(&complaint).packet, false);
    assert_eq!(outside.counter, Counter::IcmpTranslated);
    let quote = if v6 { 14 + 40 + 8 } else { 14 + 20 + 8 };
    assert_eq!(outside.packet[quote..], asked[14..]);
    assert_eq!(icmp_sum(&outside.packet), 0, "the ICMP checksum");
}

#[rstest]
fn a_backend_learns_that_its_answer_was_too_big(#[values(false, true)] v6: bool) {
    let a = Addresses::of(v6);
    let world = world(a);
    let (client, service, backend) = (at(a.pod, 40_000), at(a.cluster_ip, 80), at(a.backend, 8080));
    world.ingress(&tcp(client, service, Tcp::Syn, b""));
    let answer = world
        .egress(&tcp(backend, client, Tcp::SynAck, b""), false)
        .packet;
    let inside = world.ingress(&error(client.ip(), service.ip(), TOO_BIG, &answer));
    assert_eq!(
        (inside.marked, inside.counter),
        (false, Counter::IcmpTranslated)
    );
    assert_eq!(
        read(&inside.packet),
        (client.ip(), backend.ip(), backend, client)
    );
}

#[rstest]
fn errors_about_masqueraded_flows_are_translated_at_both_hooks(#[values(false, true)] v6: bool) {
    let a = Addresses::of(v6);
    let world = world(a);
    let (client, service, backend) = (
        at(a.outsider, 40_000),
        at(a.cluster_ip, 80),
        at(a.backend, 8080),
    );
    let sent = world.forward(&tcp(client, service, Tcp::Syn, b"")).packet;
    let source = seen(&sent).src;

    let inside = world.ingress(&error(a.other_node_address, source.ip(), TOO_BIG, &sent));
    assert_eq!(
        read(&inside.packet),
        (a.other_node_address, client.ip(), client, backend)
    );
    let outside = world.egress(&inside.packet, inside.marked);
    assert_eq!(
        read(&outside.packet),
        (service.ip(), client.ip(), client, service)
    );

    let answer = world
        .ingress(&tcp(backend, source, Tcp::SynAck, b""))
        .packet;
    let answer = world.egress(&answer, false).packet;
    let inside = world.ingress(&error(client.ip(), service.ip(), TOO_BIG, &answer));
    assert!(inside.marked);
    let outside = world.egress(&inside.packet, true);
    assert!(!outside.marked);
    assert_eq!(
        read(&outside.packet),
        (source.ip(), backend.ip(), backend, source)
    );

    // An error of this node about the answer quotes the packet with the client's own address.
    let seen_here = world
        .ingress(&tcp(backend, source, Tcp::SynAck, b""))
        .packet;
    let own = world.egress(&error(a.node, backend.ip(), TOO_BIG, &seen_here), false);
    assert_eq!(
        read(&own.packet),
        (source.ip(), backend.ip(), backend, source)
    );
}

#[rstest]
fn a_redirect_about_a_translated_flow_is_dropped(#[values(false, true)] v6: bool) {
    let a = Addresses::of(v6);
    let world = world(a);
    let client = at(a.pod, 40_000);
    let sent = world
        .ingress(&tcp(client, at(a.cluster_ip, 80), Tcp::Syn, b""))
        .packet;
    let outcome = world.egress(&error(a.node, client.ip(), REDIRECT, &sent), false);
    assert_eq!(
        (outcome.verdict, outcome.counter),
        (SHOT, Counter::IcmpRedirectDropped)
    );
    let foreign = tcp(client, at(a.outsider, 80), Tcp::Syn, b"");
    let redirect = error(a.node, client.ip(), REDIRECT, &foreign);
    let outcome = world.egress(&redirect, false);
    assert_eq!(
        (outcome.packet, outcome.counter),
        (redirect, Counter::Untouched)
    );
}

#[rstest]
fn errors_about_what_is_no_flow_pass_untouched(#[values(false, true)] v6: bool) {
    let a = Addresses::of(v6);
    let world = world(a);
    let foreign = tcp(at(a.pod, 40_000), at(a.outsider, 80), Tcp::Syn, b"");
    let complaint = error(a.outsider, a.pod, TOO_BIG, &foreign);
    for outcome in [world.ingress(&complaint), world.egress(&complaint, false)] {
        assert_eq!((outcome.verdict, &outcome.packet), (NEXT, &complaint));
        assert_eq!(outcome.counter, Counter::Untouched);
    }
}
