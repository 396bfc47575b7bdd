// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fragmented datagrams.

use std::net::IpAddr;

use proxy_common::{Counter, FrontendKind, Protocol};
use rstest::rstest;

use crate::{
    packets::{at, internet_sum, ip_header, raw, seen, udp},
    service::{Addresses, Service},
    world::{SHOT, World},
};

fn world(a: Addresses) -> World {
    let backends = [at(a.backend, 8080)];
    World::new(&[Service::cluster_ip(
        "web",
        Protocol::UDP,
        a.cluster_ip,
        &backends,
    )])
}

/// A datagram of 32 bytes in two fragments, each with an Ethernet and an IP header.
pub(crate) fn fragments(src: (IpAddr, u16), dst: (IpAddr, u16), id: u16) -> [Vec<u8>; 2] {
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
        let sum = internet_sum(&[&packet[14..34]]);
        packet[24..26].copy_from_slice(&sum.to_be_bytes());
        packet
    })
}

/// Joins two fragments to a datagram.
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
fn later_fragments_follow_their_first_through_both_hooks(#[values(false, true)] v6: bool) {
    let a = Addresses::of(v6);
    let world = world(a);
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
fn a_later_fragment_that_comes_first_is_dropped_and_counted(#[values(false, true)] v6: bool) {
    let a = Addresses::of(v6);
    let world = world(a);
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

#[rstest]
fn an_identification_that_comes_again_is_another_datagrams(#[values(false, true)] v6: bool) {
    let a = Addresses::of(v6);
    let dns = Service::cluster_ip("dns", Protocol::UDP, a.cluster_ip, &[at(a.backend, 8080)]);
    let world = World::new(&[dns.with(None, 30_053, FrontendKind::NodePort, 0)]);
    let client = (a.outsider, 40_000);
    for packet in fragments(client, (a.node, 30_053), 7) {
        let out = world.forward(&packet);
        assert!(matches!(
            out.counter,
            Counter::Masqueraded | Counter::Untouched
        ));
    }
    // Fragments to a process of the node.
    for packet in fragments(client, (a.node, 9999), 7) {
        let out = world.ingress(&packet);
        assert_eq!((out.packet, out.counter), (packet, Counter::Untouched));
    }
    // The backend's answers through the service, and its other packets to the same client.
    let pod = (a.pod, 40_000);
    let asked = world.ingress(&udp(at(pod.0, pod.1), at(a.cluster_ip, 80), b"?"));
    assert_eq!(asked.counter, Counter::ForwardedNew);
    for packet in fragments((a.backend, 8080), pod, 8) {
        let out = world.egress(&packet, false);
        assert_eq!(out.counter, Counter::ReplyTranslated);
    }
    for packet in fragments((a.backend, 8081), pod, 8) {
        let out = world.egress(&packet, false);
        assert_eq!((out.packet, out.counter), (packet, Counter::Untouched));
    }
}
