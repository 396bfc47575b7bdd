// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Builds packets and reads them back; every checksum is checked.

use std::net::{IpAddr, SocketAddr};

use etherparse::{
    IpHeaders, IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6Header, NetHeaders, PacketBuilder,
    PacketBuilderStep, PacketHeaders, TcpHeader, TransportHeader,
};
use proxy_common::Protocol;

pub(crate) const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub(crate) const NODE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

pub(crate) fn at(address: IpAddr, port: u16) -> SocketAddr {
    SocketAddr::new(address, port)
}

/// The TCP flags that tests use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tcp {
    Syn,
    SynAck,
    Ack,
    Fin,
    Rst,
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
    let mut header = TcpHeader::new(src.port(), dst.port(), sequence, 512);
    header.acknowledgment_number = acknowledgement;
    (header.syn, header.ack, header.fin, header.rst) = match flags {
        Tcp::Syn => (true, false, false, false),
        Tcp::SynAck => (true, true, false, false),
        Tcp::Ack => (false, true, false, false),
        Tcp::Fin => (false, true, true, false),
        Tcp::Rst => (false, false, false, true),
    };
    let mut packet = Vec::new();
    network(src, dst)
        .tcp_header(header)
        .write(&mut packet, payload)
        .expect("a packet");
    packet
}

pub(crate) fn udp(src: SocketAddr, dst: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let mut packet = Vec::new();
    network(src, dst)
        .udp(src.port(), dst.port())
        .write(&mut packet, payload)
        .expect("a packet");
    packet
}

/// A segment with these flags, or over UDP a datagram.
pub(crate) fn packet_over(
    protocol: Protocol,
    src: SocketAddr,
    dst: SocketAddr,
    flags: Tcp,
) -> Vec<u8> {
    match protocol {
        Protocol::UDP => udp(src, dst, b"?"),
        _ => tcp(src, dst, flags, b""),
    }
}

fn network(src: SocketAddr, dst: SocketAddr) -> PacketBuilderStep<IpHeaders> {
    let ethernet = PacketBuilder::ethernet2(CLIENT_MAC, NODE_MAC);
    match (src.ip(), dst.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => ethernet.ipv4(src.octets(), dst.octets(), 64),
        (IpAddr::V6(src), IpAddr::V6(dst)) => ethernet.ipv6(src.octets(), dst.octets(), 64),
        _ => panic!("both of one family"),
    }
}

/// An ICMP packet; its message gets the right checksum.
pub(crate) fn icmp(src: IpAddr, dst: IpAddr, message: &[u8]) -> Vec<u8> {
    let (protocol, at) = if src.is_ipv6() { (58, 56) } else { (1, 36) };
    let mut packet = raw(src, dst, protocol, message);
    let sum = icmp_sum(&packet).to_be_bytes();
    packet[at..at + 2].copy_from_slice(&sum);
    packet
}

/// The remaining sum of a packet: 0 if its ICMP checksum is correct.
pub(crate) fn icmp_sum(packet: &[u8]) -> u16 {
    if packet[12..14] == [0x86, 0xdd] {
        let length = (packet.len() as u32 - 54).to_be_bytes();
        internet_sum(&[&packet[22..54], &length, &[0, 0, 0, 58], &packet[54..]])
    } else {
        internet_sum(&[&packet[34..]])
    }
}

/// A packet with any transport bytes after its IP header.
pub(crate) fn raw(src: IpAddr, dst: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let ethertype: [u8; 2] = if src.is_ipv4() { [8, 0] } else { [0x86, 0xdd] };
    let mut packet = [&NODE_MAC[..], &CLIENT_MAC[..], &ethertype[..]].concat();
    packet.extend(ip_header(src, dst, protocol, payload.len()));
    packet.extend(payload);
    packet
}

pub(crate) fn ip_header(src: IpAddr, dst: IpAddr, protocol: u8, length: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let length = u16::try_from(length).expect("short");
            let mut header =
                Ipv4Header::new(length, 64, IpNumber(protocol), src.octets(), dst.octets())
                    .expect("fits");
            header.header_checksum = header.calc_header_checksum();
            header.write(&mut bytes).expect("a header");
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => Ipv6Header {
            traffic_class: 0,
            flow_label: Ipv6FlowLabel::ZERO,
            payload_length: u16::try_from(length).expect("short"),
            next_header: IpNumber(protocol),
            hop_limit: 64,
            source: src.octets(),
            destination: dst.octets(),
        }
        .write(&mut bytes)
        .expect("a header"),
        _ => panic!("both of one family"),
    }
    bytes
}

/// The contents of a TCP or UDP packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    pub(crate) src: SocketAddr,
    pub(crate) dst: SocketAddr,
    pub(crate) payload: Vec<u8>,
}

/// Reads a TCP or UDP packet and checks the IP header's and the transport's checksum.
pub(crate) fn seen(packet: &[u8]) -> Seen {
    let headers = PacketHeaders::from_ethernet_slice(packet).expect("a packet");
    let payload = headers.payload.slice().to_vec();
    let (src, dst) = addresses(&headers);
    let net = headers.net.as_ref().expect("a network");
    let (src_port, dst_port, checksum, right) = match headers.transport.expect("a transport") {
        TransportHeader::Tcp(tcp) => {
            let right = match net {
                NetHeaders::Ipv4(ip, _) => tcp.calc_checksum_ipv4(ip, &payload),
                NetHeaders::Ipv6(ip, _) => tcp.calc_checksum_ipv6(ip, &payload),
                NetHeaders::Arp(_) => panic!("not IP"),
            };
            (tcp.source_port, tcp.destination_port, tcp.checksum, right)
        }
        TransportHeader::Udp(udp) => {
            let right = match net {
                // The datagram has none.
                _ if udp.checksum == 0 => Ok(0),
                NetHeaders::Ipv4(ip, _) => udp.calc_checksum_ipv4(ip, &payload),
                NetHeaders::Ipv6(ip, _) => udp.calc_checksum_ipv6(ip, &payload),
                NetHeaders::Arp(_) => panic!("not IP"),
            };
            (udp.source_port, udp.destination_port, udp.checksum, right)
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(checksum, right.expect("short"), "the transport's checksum");
    Seen {
        src: at(src, src_port),
        dst: at(dst, dst_port),
        payload,
    }
}

/// The addresses of a packet; checks the checksum of its IPv4 header.
pub(crate) fn addresses(headers: &PacketHeaders<'_>) -> (IpAddr, IpAddr) {
    match headers.net.as_ref().expect("a network") {
        NetHeaders::Ipv4(ip, _) => {
            assert_eq!(
                ip.header_checksum,
                ip.calc_header_checksum(),
                "the header's checksum"
            );
            (ip.source.into(), ip.destination.into())
        }
        NetHeaders::Ipv6(ip, _) => (ip.source.into(), ip.destination.into()),
        NetHeaders::Arp(_) => panic!("not IP"),
    }
}

/// The remaining hops of a packet; checks the checksum of an IPv4 header.
pub(crate) fn hops(packet: &[u8]) -> u8 {
    if packet[12..14] == [8, 0] {
        assert_eq!(internet_sum(&[&packet[14..34]]), 0, "the header's checksum");
        packet[22]
    } else {
        packet[21]
    }
}

/// The same packet with another hop limit.
pub(crate) fn with_hops(mut packet: Vec<u8>, hops: u8) -> Vec<u8> {
    if packet[12..14] == [8, 0] {
        packet[22] = hops;
        correct_ipv4_header(&mut packet);
    } else {
        packet[21] = hops;
    }
    packet
}

/// The same IPv4 packet with this many 32-bit words of options, all "no operation".
pub(crate) fn with_options(mut packet: Vec<u8>, words: u8) -> Vec<u8> {
    packet.splice(34..34, vec![1; usize::from(words) * 4]);
    packet[14] += words;
    let length = u16::try_from(packet.len() - 14).expect("short");
    packet[16..18].copy_from_slice(&length.to_be_bytes());
    correct_ipv4_header(&mut packet);
    packet
}

/// Corrects the checksum of an IPv4 header.
pub(crate) fn correct_ipv4_header(packet: &mut [u8]) {
    let length = usize::from(packet[14] & 0xf) * 4;
    packet[24..26].fill(0);
    let sum = internet_sum(&[&packet[14..14 + length]]);
    packet[24..26].copy_from_slice(&sum.to_be_bytes());
}

/// The Internet checksum of some bytes; 0 if they contain a correct checksum.
pub(crate) fn internet_sum(parts: &[&[u8]]) -> u16 {
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

/// Computes CRC32c bit by bit, as the standard defines it, to check the programs' faster method.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0x82f6_3b78 * (crc & 1))
        })
    })
}

/// An SCTP packet with one INIT chunk; a checksum of zero means that the device fills it in.
pub(crate) fn sctp(src: SocketAddr, dst: SocketAddr, filled: bool) -> Vec<u8> {
    let mut bytes = [src.port().to_be_bytes(), dst.port().to_be_bytes()].concat();
    bytes.extend([0; 8]);
    bytes.extend([1, 0, 0, 20]);
    bytes.extend((0..16).map(|n| n * 7));
    if filled {
        let crc = crc32c(&bytes);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    }
    raw(src.ip(), dst.ip(), 132, &bytes)
}
