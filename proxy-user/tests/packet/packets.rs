// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Builds packets and reads them back; every checksum is checked.

use std::net::{IpAddr, SocketAddr};

pub(crate) const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub(crate) const NODE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const ICMP: u8 = 1;
pub(crate) const ICMPV6: u8 = 58;

pub(crate) fn at(address: IpAddr, port: u16) -> SocketAddr {
    SocketAddr::new(address, port)
}

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
    with_sum(raw(src.ip(), dst.ip(), TCP, &segment), 16)
}

pub(crate) fn udp(src: SocketAddr, dst: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(8 + payload.len()).expect("short");
    let header = [&ports(src, dst)[..], &length.to_be_bytes(), &[0, 0]].concat();
    let datagram = [&header, payload].concat();
    with_sum(raw(src.ip(), dst.ip(), UDP, &datagram), 6)
}

fn ports(src: SocketAddr, dst: SocketAddr) -> Vec<u8> {
    [src.port().to_be_bytes(), dst.port().to_be_bytes()].concat()
}

/// An ICMP packet; its message gets the right checksum.
pub(crate) fn icmp(src: IpAddr, dst: IpAddr, message: &[u8]) -> Vec<u8> {
    let protocol = if src.is_ipv6() { ICMPV6 } else { ICMP };
    with_sum(raw(src, dst, protocol, message), 2)
}

/// A packet with any transport bytes after its IP header.
pub(crate) fn raw(src: IpAddr, dst: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len()).expect("short");
    let mut packet = [NODE_MAC, CLIENT_MAC].concat();
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            packet.extend([8, 0, 0x45, 0]);
            packet.extend((20 + length).to_be_bytes());
            packet.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
            packet.extend([src.octets(), dst.octets()].concat());
            correct_ipv4_header(&mut packet);
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            packet.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            packet.extend(length.to_be_bytes());
            packet.extend([protocol, 64]);
            packet.extend([src.octets(), dst.octets()].concat());
        }
        _ => panic!("both of one family"),
    }
    packet.extend(payload);
    packet
}

/// The packet with its transport's checksum, which is this far behind the IP header.
fn with_sum(mut packet: Vec<u8>, field: usize) -> Vec<u8> {
    let at = transport(&packet) + field;
    let sum = transport_sum(&packet).to_be_bytes();
    packet[at..at + 2].copy_from_slice(&sum);
    packet
}

fn is_v6(packet: &[u8]) -> bool {
    packet[12..14] == [0x86, 0xdd]
}

/// Where the transport's header begins in a packet without options.
pub(crate) fn transport(packet: &[u8]) -> usize {
    if is_v6(packet) { 54 } else { 34 }
}

/// The remaining sum of a packet's transport: 0 if its checksum is correct.
pub(crate) fn transport_sum(packet: &[u8]) -> u16 {
    let l4 = transport(packet);
    let (ends, protocol) = if is_v6(packet) {
        (&packet[22..54], packet[20])
    } else {
        (&packet[26..34], packet[23])
    };
    let length = (packet.len() as u32 - l4 as u32).to_be_bytes();
    let pseudo = [ends, &length, &[0, 0, 0, protocol]].concat();
    let covered = if protocol == ICMP { &[] } else { &pseudo[..] };
    internet_sum(&[covered, &packet[l4..]])
}

/// Source and destination address of a packet; checks the checksum of its IPv4 header.
pub(crate) fn addresses(packet: &[u8]) -> (IpAddr, IpAddr) {
    if is_v6(packet) {
        let address = |at| <[u8; 16]>::try_from(&packet[at..at + 16]).expect("an address");
        return (address(22).into(), address(38).into());
    }
    assert_eq!(internet_sum(&[&packet[14..34]]), 0, "the header's checksum");
    let address = |at| <[u8; 4]>::try_from(&packet[at..at + 4]).expect("an address");
    (address(26).into(), address(30).into())
}

/// Source and destination of a TCP or UDP packet; checks the IP header's and the transport's
/// checksum.
pub(crate) fn ends(packet: &[u8]) -> (SocketAddr, SocketAddr) {
    let (src, dst) = addresses(packet);
    let l4 = transport(packet);
    assert_eq!(transport_sum(packet), 0, "the transport's checksum");
    let port = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
    (at(src, port(l4)), at(dst, port(l4 + 2)))
}

/// The remaining hops of a packet; checks the checksum of an IPv4 header.
pub(crate) fn hops(packet: &[u8]) -> u8 {
    addresses(packet);
    packet[if is_v6(packet) { 21 } else { 22 }]
}

/// The same packet with another hop limit.
pub(crate) fn with_hops(mut packet: Vec<u8>, hops: u8) -> Vec<u8> {
    if is_v6(&packet) {
        packet[21] = hops;
    } else {
        packet[22] = hops;
        correct_ipv4_header(&mut packet);
    }
    packet
}

/// Corrects the checksum of an IPv4 header without options.
pub(crate) fn correct_ipv4_header(packet: &mut [u8]) {
    packet[24..26].fill(0);
    let sum = internet_sum(&[&packet[14..34]]);
    packet[24..26].copy_from_slice(&sum.to_be_bytes());
}

/// The Internet checksum of some bytes; 0 if they contain a correct checksum.
fn internet_sum(parts: &[&[u8]]) -> u16 {
    let bytes = parts.concat();
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0)))
        .sum();
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    !(sum as u16)
}
