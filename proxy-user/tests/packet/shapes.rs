// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Unusual packets: options, extension headers, tags, fragments, and what is cut short or lies about
//! itself. None may crash a program, be read past its end, or leave half translated.

use std::net::IpAddr;

use portolan::datapath::PROGRAMS;
use proxy_common::{Counter, Protocol};
use rstest::rstest;

use crate::{
    packets::{Tcp, at, ip_header, raw, seen, tcp, udp},
    world::{Addresses, NEXT, SHOT, Service, World},
};

/// What the verifier may look at per program; far below its limit of a million.
const INSTRUCTION_BUDGET: u32 = 300_000;

fn world(a: Addresses, protocol: Protocol) -> World {
    World::new(&[Service::cluster_ip(
        "web",
        protocol,
        a.cluster_ip,
        &[at(a.backend, 8080)],
    )])
}

#[test]
fn every_program_loads_within_its_instruction_budget() {
    for redirects in [false, true] {
        let world = World::with(|options| options.redirects = redirects, &[]);
        for program in PROGRAMS {
            let instructions = world.verified_instructions(program);
            println!("{program}, redirects {redirects}: {instructions} verified instructions");
            assert!(
                instructions < INSTRUCTION_BUDGET,
                "{program}, redirects {redirects}: {instructions}"
            );
        }
    }
}

#[test]
fn ipv4_options_are_stepped_over() {
    let a = Addresses::of(false);
    let world = world(a, Protocol::TCP);
    let plain = tcp(at(a.pod, 40_000), at(a.cluster_ip, 80), Tcp::Syn, b"x");
    for words in 1..=10_u8 {
        let mut packet = plain.clone();
        packet.splice(34..34, vec![1; usize::from(words) * 4]);
        packet[14] = 0x45 + words;
        let length = u16::try_from(packet.len() - 14).expect("short");
        packet[16..18].copy_from_slice(&length.to_be_bytes());
        packet[24..26].fill(0);
        let sum = crate::packets::internet_sum(&[&packet[14..34 + usize::from(words) * 4]]);
        packet[24..26].copy_from_slice(&sum.to_be_bytes());
        let outcome = world.ingress(&packet);
        assert_eq!(outcome.verdict, NEXT);
        assert_eq!(
            seen(&outcome.packet).dst,
            at(a.backend, 8080),
            "{words} words of options"
        );
    }
}

#[test]
fn ipv6_extension_headers_are_followed_up_to_their_limit() {
    let a = Addresses::of(true);
    let world = world(a, Protocol::TCP);
    let (client, service) = (at(a.pod, 40_000), at(a.cluster_ip, 80));
    let plain = tcp(client, service, Tcp::Syn, b"x");
    for count in 1..=9_usize {
        // Destination options, padded: next header, length 0, PadN of four.
        let chain: Vec<u8> = (1..=count)
            .flat_map(|n| [if n == count { 6 } else { 60 }, 0, 1, 4, 0, 0, 0, 0])
            .collect();
        let packet = raw(
            client.ip(),
            service.ip(),
            60,
            &[&chain, &plain[54..]].concat(),
        );
        let outcome = world.ingress(&packet);
        if count <= 8 {
            let mut unchained = outcome.packet.clone();
            unchained.drain(54..54 + count * 8);
            unchained[20] = 6;
            let length = u16::try_from(unchained.len() - 54).expect("short");
            unchained[18..20].copy_from_slice(&length.to_be_bytes());
            assert_eq!(seen(&unchained).dst, at(a.backend, 8080), "{count} headers");
        } else {
            assert_eq!(
                (outcome.packet, outcome.counter),
                (packet, Counter::Untouched)
            );
        }
    }
}

#[rstest]
#[case::v4(false)]
#[case::v6(true)]
fn a_vlan_tag_inside_the_packet_is_stepped_over(#[case] v6: bool) {
    let a = Addresses::of(v6);
    let world = world(a, Protocol::TCP);
    let mut packet = tcp(at(a.pod, 40_000), at(a.cluster_ip, 80), Tcp::Syn, b"");
    packet.splice(12..12, [0x81, 0, 0, 7]);
    let outcome = world.ingress(&packet);
    assert_eq!(
        (outcome.verdict, &outcome.packet[12..16]),
        (NEXT, &[0x81, 0, 0, 7][..])
    );
    let mut untagged = outcome.packet.clone();
    untagged.drain(12..16);
    assert_eq!(seen(&untagged).dst, at(a.backend, 8080));
}

/// A datagram of 32 bytes in two fragments, each behind Ethernet and IP headers.
fn fragments(src: (IpAddr, u16), dst: (IpAddr, u16), id: u16) -> [Vec<u8>; 2] {
    let v6 = src.0.is_ipv6();
    let whole = udp(at(src.0, src.1), at(dst.0, dst.1), &[7; 24]);
    let datagram = &whole[if v6 { 54 } else { 34 }..];
    [(0, &datagram[..16]), (2, &datagram[16..])].map(|(offset, bytes)| {
        let more = u16::from(offset == 0);
        if v6 {
            let id = u32::from(id).to_be_bytes();
            let offset_flags = (offset << 3 | more).to_be_bytes();
            let header = [&[17, 0][..], &offset_flags, &id].concat();
            return raw(src.0, dst.0, 44, &[&header, bytes].concat());
        }
        let mut packet = raw(src.0, dst.0, 17, bytes);
        packet[18..20].copy_from_slice(&id.to_be_bytes());
        packet[20..22].copy_from_slice(&(offset | more << 13).to_be_bytes());
        packet[24..26].fill(0);
        let sum = crate::packets::internet_sum(&[&packet[14..34]]);
        packet[24..26].copy_from_slice(&sum.to_be_bytes());
        packet
    })
}

/// The datagram that two fragments make.
fn joined(first: &[u8], second: &[u8], v6: bool) -> Vec<u8> {
    let (at, ends): (usize, _) = if v6 { (62, (22, 54)) } else { (34, (26, 34)) };
    assert_eq!(
        first[ends.0..ends.1],
        second[ends.0..ends.1],
        "both have the same ends"
    );
    let ip = |from: usize, to: usize| -> IpAddr {
        match <[u8; 16]>::try_from(&first[from..to]) {
            Ok(octets) => octets.into(),
            Err(_) => <[u8; 4]>::try_from(&first[from..to])
                .expect("an address")
                .into(),
        }
    };
    let half = (ends.1 - ends.0) / 2;
    let (src, dst) = (ip(ends.0, ends.0 + half), ip(ends.0 + half, ends.1));
    let datagram = [&first[at..], &second[at..]].concat();
    [
        &first[..14],
        &ip_header(src, dst, 17, datagram.len()),
        &datagram,
    ]
    .concat()
}

#[rstest]
#[case::v4(false)]
#[case::v6(true)]
fn later_fragments_follow_their_first_through_both_hooks(#[case] v6: bool) {
    let a = Addresses::of(v6);
    let world = world(a, Protocol::UDP);
    for (client, id) in [(a.pod, 1), (a.outsider, 2)] {
        let [first, second] = fragments((client, 40_000), (a.cluster_ip, 80), id);
        let (first, second) = (world.ingress(&first), world.ingress(&second));
        assert_eq!(second.counter, Counter::ForwardedHit);
        assert_eq!(
            (first.marked, second.marked),
            (client == a.outsider, client == a.outsider)
        );
        let whole = seen(&joined(&first.packet, &second.packet, v6));
        assert_eq!(
            (whole.src, whole.dst),
            (at(client, 40_000), at(a.backend, 8080))
        );
        assert_eq!(whole.payload, [7; 24]);
        let out = (
            world.egress(&first.packet, first.marked),
            world.egress(&second.packet, second.marked),
        );
        let whole = seen(&joined(&out.0.packet, &out.1.packet, v6));
        assert_eq!(whole.src.ip(), if first.marked { a.node } else { client });

        let [first, second] = fragments((a.backend, 8080), (whole.src.ip(), whole.src.port()), id);
        let back = [first, second].map(|fragment| {
            let inside = world.ingress(&fragment);
            world.egress(&inside.packet, inside.marked).packet
        });
        let whole = seen(&joined(&back[0], &back[1], v6));
        assert_eq!(
            (whole.src, whole.dst),
            (at(a.cluster_ip, 80), at(client, 40_000))
        );
    }
}

#[rstest]
#[case::v4(false)]
#[case::v6(true)]
fn a_later_fragment_that_comes_first_is_dropped_and_counted(#[case] v6: bool) {
    let a = Addresses::of(v6);
    let world = world(a, Protocol::UDP);
    let [_, second] = fragments((a.pod, 40_000), (a.cluster_ip, 80), 9);
    let outcome = world.ingress(&second);
    assert_eq!(
        (outcome.verdict, outcome.counter),
        (SHOT, Counter::DroppedFragment)
    );
    let [_, foreign] = fragments((a.pod, 40_000), (a.outsider, 80), 9);
    let outcome = world.ingress(&foreign);
    assert_eq!(
        (outcome.packet, outcome.counter),
        (foreign, Counter::Untouched)
    );
}

/// Whatever a program makes of a packet: untouched byte for byte, dropped, or with both its destination
/// and its checksums right.
fn is_whole(world: &World, packet: &[u8], backend: std::net::SocketAddr) {
    let outcome = world.ingress(packet);
    if outcome.verdict == SHOT || outcome.packet == packet {
        return;
    }
    assert!(
        matches!(
            outcome.counter,
            Counter::ForwardedNew | Counter::ForwardedHit
        ),
        "{outcome:?}"
    );
    let moved = etherparse::LaxPacketHeaders::from_ethernet(&outcome.packet).expect("a packet");
    let destination = match moved.net.expect("a network") {
        etherparse::NetHeaders::Ipv4(ip, _) => IpAddr::from(ip.destination),
        etherparse::NetHeaders::Ipv6(ip, _) => IpAddr::from(ip.destination),
        etherparse::NetHeaders::Arp(_) => panic!("not IP"),
    };
    assert_eq!(destination, backend.ip());
    let ports = if destination.is_ipv6() { 54 } else { 34 };
    assert_eq!(
        outcome.packet[ports + 2..ports + 4],
        backend.port().to_be_bytes()
    );
    assert_eq!(outcome.packet.len(), packet.len());
}

#[rstest]
#[case::v4(false)]
#[case::v6(true)]
fn a_packet_cut_short_anywhere_is_never_left_half_translated(#[case] v6: bool) {
    let a = Addresses::of(v6);
    for protocol in [Protocol::TCP, Protocol::UDP] {
        let world = world(a, protocol);
        let (client, service) = (at(a.pod, 40_000), at(a.cluster_ip, 80));
        let packet = if protocol == Protocol::TCP {
            tcp(client, service, Tcp::Syn, b"payload")
        } else {
            udp(client, service, b"payload")
        };
        // The kernel's test run refuses packets that end before their IP header does.
        let shortest = 14 + if v6 { 40 } else { 20 };
        for length in shortest..packet.len() {
            is_whole(&world, &packet[..length], at(a.backend, 8080));
        }
    }
}

#[rstest]
#[case::v4(false)]
#[case::v6(true)]
fn a_packet_that_lies_about_its_lengths_is_never_left_half_translated(#[case] v6: bool) {
    let a = Addresses::of(v6);
    let world = world(a, Protocol::TCP);
    let packet = tcp(
        at(a.pod, 40_000),
        at(a.cluster_ip, 80),
        Tcp::Syn,
        b"payload",
    );
    let fields: &[usize] = if v6 {
        &[14, 18, 19, 20, 66]
    } else {
        &[14, 16, 17, 20, 21, 23, 46]
    };
    for field in fields {
        for value in 0..=255 {
            let mut lying = packet.clone();
            lying[*field] = value;
            let outcome = world.ingress(&lying);
            assert!(
                outcome.verdict != NEXT || outcome.packet.len() == lying.len(),
                "{field} {value}"
            );
        }
    }
}
