// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fragmented datagrams, byte by byte. What becomes of them stands in the fuzzer's cases.

use std::net::SocketAddr;

use etherparse::PacketHeaders;
use proxy_common::{Counter, Protocol};
use rstest::rstest;

use crate::{
    packets::{addresses, at, correct_ipv4_header, ip_header, raw, seen, udp},
    service::{Addresses, IPV4, IPV6, Service},
    world::World,
};

fn world(a: Addresses) -> World {
    World::new(&[Service::over(Protocol::UDP, a)])
}

/// A datagram of 32 bytes in two fragments, each with an Ethernet and an IP header.
pub(crate) fn fragments(src: SocketAddr, dst: SocketAddr, id: u16) -> [Vec<u8>; 2] {
    let v6 = src.is_ipv6();
    let whole = udp(src, dst, &[7; 24]);
    let datagram = &whole[if v6 { 54 } else { 34 }..];
    [(0, &datagram[..16]), (2, &datagram[16..])].map(|(offset, bytes)| {
        let more = u16::from(offset == 0);
        if v6 {
            let id = u32::from(id).to_be_bytes();
            let offset_flags = (offset << 3 | more).to_be_bytes();
            let header = [&[17, 0][..], &offset_flags, &id].concat();
            return raw(src.ip(), dst.ip(), 44, &[&header, bytes].concat());
        }
        let mut packet = raw(src.ip(), dst.ip(), 17, bytes);
        packet[18..20].copy_from_slice(&id.to_be_bytes());
        packet[20..22].copy_from_slice(&(offset | more << 13).to_be_bytes());
        correct_ipv4_header(&mut packet);
        packet
    })
}

/// Joins two fragments to a datagram.
fn joined(first: &[u8], second: &[u8], v6: bool) -> Vec<u8> {
    let (at, ends) = if v6 { (62, 22..54) } else { (34, 26..34) };
    assert_eq!(first[ends.clone()], second[ends], "both have the same ends");
    let datagram = [&first[at..], &second[at..]].concat();
    let (src, dst) = addresses(&PacketHeaders::from_ethernet_slice(first).expect("a packet"));
    [
        &first[..14],
        &ip_header(src, dst, 17, datagram.len()),
        &datagram,
    ]
    .concat()
}

#[rstest]
fn later_fragments_are_translated_like_the_first_one_at_both_hooks(
    #[values(IPV4, IPV6)] a: Addresses,
) {
    let world = world(a);
    for (client, id) in [(a.client(), 1), (a.outside_client(), 2)] {
        let [first, second] = fragments(client, a.service(), id);
        let (first, second) = (world.ingress(&first), world.ingress(&second));
        assert_eq!(second.counter, Counter::ForwardedHit);
        let is_outside = client == a.outside_client();
        assert_eq!((first.marked, second.marked), (is_outside, is_outside));
        let whole = seen(&joined(&first.packet, &second.packet, a.is_v6()));
        assert_eq!((whole.src, whole.dst), (client, a.endpoint()));
        assert_eq!(whole.payload, [7; 24]);
        let [first, second] =
            [first, second].map(|fragment| world.egress(&fragment.packet, fragment.marked));
        let whole = seen(&joined(&first.packet, &second.packet, a.is_v6()));
        assert_eq!(
            whole.src.ip(),
            if is_outside { a.node } else { client.ip() }
        );

        let back = fragments(a.endpoint(), whole.src, id).map(|fragment| {
            let inside = world.ingress(&fragment);
            world.egress(&inside.packet, inside.marked).packet
        });
        let whole = seen(&joined(&back[0], &back[1], a.is_v6()));
        assert_eq!((whole.src, whole.dst), (a.service(), client));
    }
}

/// Two ends use each identification again, and the last fragment of a datagram may come first.
#[test]
fn ports_of_a_datagram_are_forgotten_when_the_kernel_would_no_longer_wait_for_it() {
    let a = IPV4;
    let world = World::new(&[Service::over(Protocol::UDP, a).at_node_port(30_053)]);
    let client = a.outside_client();
    let [first, second] = fragments(client, at(a.node, 30_053), 7);
    assert_eq!(world.ingress(&first).counter, Counter::ForwardedNew);
    let [_, own] = fragments(client, at(a.node, 9999), 7);
    for age in 0..2 {
        assert_eq!(
            world.ingress(&second).counter,
            Counter::ForwardedHit,
            "{age}"
        );
        world.age_fragments();
    }
    world.expect_untouched(&own);
}
