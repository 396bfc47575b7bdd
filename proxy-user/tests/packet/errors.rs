// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes ICMP errors about flows. What becomes of them stands in tests/fuzz/cases/errors.txt.

use std::net::{IpAddr, SocketAddr};

use etherparse::PacketHeaders;
use proxy_common::{Counter, Protocol};
use rstest::rstest;

use crate::{
    packets::{addresses, icmp, icmp_sum, seen, udp},
    service::{Addresses, IPV4, IPV6, Service},
    world::{Outcome, World},
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
