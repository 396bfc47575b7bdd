// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Builds packets and reads them back; every checksum is checked.

use std::net::{IpAddr, SocketAddr};

use crate::{
    frames,
    wire::{self, Headers, ICMP, ICMPV6, sum},
};
pub(crate) use crate::{
    frames::at,
    wire::{TCP, UDP},
};

pub(crate) const NODE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// The TCP flags that tests use, as they stand in a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tcp {
    Syn = 2,
    SynAck = 0x12,
    Ack = 0x10,
    Fin = 0x11,
    Rst = 4,
}

/// A segment with numbers as in the middle of a connection.
pub(crate) fn tcp(src: SocketAddr, dst: SocketAddr, flags: Tcp, payload: &[u8]) -> Vec<u8> {
    numbered(src, dst, flags, (1000, 2000), payload)
}

/// A segment with this sequence and acknowledgement number.
pub(crate) fn numbered(
    src: SocketAddr,
    dst: SocketAddr,
    flags: Tcp,
    (sequence, acknowledgement): (u32, u32),
    payload: &[u8],
) -> Vec<u8> {
    let numbers = [sequence.to_be_bytes(), acknowledgement.to_be_bytes()].concat();
    let rest = [0x50, flags as u8, 2, 0, 0, 0, 0, 0];
    let segment = [&ports(src, dst), &numbers, &rest[..], payload].concat();
    raw(src.ip(), dst.ip(), TCP, &segment)
}

pub(crate) fn udp(src: SocketAddr, dst: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(8 + payload.len()).expect("short");
    let header = [&ports(src, dst)[..], &length.to_be_bytes(), &[0, 0]].concat();
    let datagram = [&header, payload].concat();
    raw(src.ip(), dst.ip(), UDP, &datagram)
}

fn ports(src: SocketAddr, dst: SocketAddr) -> Vec<u8> {
    [src.port().to_be_bytes(), dst.port().to_be_bytes()].concat()
}

/// An ICMP packet.
pub(crate) fn icmp(src: IpAddr, dst: IpAddr, message: &[u8]) -> Vec<u8> {
    let protocol = if src.is_ipv6() { ICMPV6 } else { ICMP };
    raw(src, dst, protocol, message)
}

/// A packet with any transport bytes after its IP header, and their checksum.
pub(crate) fn raw(src: IpAddr, dst: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    frames::raw(NODE_MAC, (src, dst), protocol, payload)
}

/// The headers of a packet; checks the checksum of an IPv4 header.
fn headers(packet: &[u8]) -> Headers {
    let headers = wire::read(packet).expect("a packet");
    let is_summed = headers.is_v6() || sum(&[&packet[headers.l3..headers.l4]]) == 0xffff;
    assert!(is_summed, "the header's checksum");
    headers
}

/// Where the transport's header begins.
pub(crate) fn transport(packet: &[u8]) -> usize {
    headers(packet).l4
}

/// The remaining sum of a packet's transport: 0 if its checksum is correct.
pub(crate) fn transport_sum(packet: &[u8]) -> u16 {
    let Headers { l4, tuple, .. } = headers(packet);
    let (src, dst) = (tuple.src.ip(), tuple.dst.ip());
    !wire::transport_sum(tuple.protocol, src, dst, &packet[l4..])
}

/// Source and destination address of a packet.
pub(crate) fn addresses(packet: &[u8]) -> (IpAddr, IpAddr) {
    let tuple = headers(packet).tuple;
    (tuple.src.ip(), tuple.dst.ip())
}

/// Source and destination of a TCP or UDP packet; checks the transport's checksum too.
pub(crate) fn ends(packet: &[u8]) -> (SocketAddr, SocketAddr) {
    assert_eq!(transport_sum(packet), 0, "the transport's checksum");
    let tuple = headers(packet).tuple;
    (tuple.src, tuple.dst)
}

/// The remaining hops of a packet.
pub(crate) fn hops(packet: &[u8]) -> u8 {
    packet[headers(packet).hop()]
}

/// The same packet with another hop limit.
pub(crate) fn with_hops(packet: &[u8], hops: u8) -> Vec<u8> {
    let (headers, mut changed) = (headers(packet), packet.to_vec());
    changed[headers.hop()] = hops;
    if !headers.is_v6() {
        wire::follow_half(&mut changed, headers.l3 + 10, packet, headers.hop());
    }
    changed
}
