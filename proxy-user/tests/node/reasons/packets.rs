// SPDX-License-Identifier: Apache-2.0 OR MIT
//! IPv4 packets as a device without a link layer delivers them.

use std::net::SocketAddrV4;

use etherparse::{
    IpFragOffset, IpNumber, Ipv4Header, NetSlice, PacketBuilder, SlicedPacket, TransportSlice,
    checksum::Sum16BitWords,
};

/// The sequence number of every SYN.
const FIRST: u32 = 1000;

/// The SYN of a connection, with data if there is any.
pub(super) fn syn(from: SocketAddrV4, to: SocketAddrV4, data: &[u8]) -> Vec<u8> {
    let mut packet = Vec::new();
    PacketBuilder::ipv4(from.ip().octets(), to.ip().octets(), 64)
        .tcp(from.port(), to.port(), FIRST, 65000)
        .syn()
        .write(&mut packet, data)
        .expect("a packet");
    packet
}

/// The segment with which a client acknowledges a backend's SYN-ACK.
pub(super) fn ack(from: SocketAddrV4, to: SocketAddrV4, number: u32) -> Vec<u8> {
    let mut packet = Vec::new();
    PacketBuilder::ipv4(from.ip().octets(), to.ip().octets(), 64)
        .tcp(from.port(), to.port(), FIRST + 1, 65000)
        .ack(number)
        .write(&mut packet, &[])
        .expect("a packet");
    packet
}

/// The number with which this client acknowledges the SYN-ACK of this server; None for other
/// packets.
pub(super) fn accepted(packet: &[u8], client: SocketAddrV4, server: SocketAddrV4) -> Option<u32> {
    let packet = SlicedPacket::from_ip(packet).ok()?;
    let (Some(NetSlice::Ipv4(ip)), Some(TransportSlice::Tcp(tcp))) =
        (&packet.net, &packet.transport)
    else {
        return None;
    };
    let from = SocketAddrV4::new(ip.header().source_addr(), tcp.source_port());
    let to = SocketAddrV4::new(ip.header().destination_addr(), tcp.destination_port());
    let is_it = from == server && to == client && tcp.syn() && tcp.ack();
    is_it.then(|| tcp.sequence_number().wrapping_add(1))
}

/// A fragment of a datagram that is not its first fragment.
pub(super) fn later_fragment(from: SocketAddrV4, to: SocketAddrV4) -> Vec<u8> {
    let mut packet = header(from, to, IpNumber::UDP, 64);
    packet.fragment_offset = IpFragOffset::try_new(8).expect("small");
    packet.identification = 77;
    written(packet, &[0; 64])
}

/// An ICMP redirect of a router in the client's name: the server should send its answer elsewhere.
pub(super) fn redirect(client: SocketAddrV4, server: SocketAddrV4) -> Vec<u8> {
    let mut answer = Vec::new();
    PacketBuilder::ipv4(server.ip().octets(), client.ip().octets(), 64)
        .tcp(server.port(), client.port(), 1, 65000)
        .write(&mut answer, &[])
        .expect("a packet");
    // Type 5, code 1, checksum, the address of the other router, then the quoted packet.
    let mut message = vec![5, 1, 0, 0, 192, 0, 2, 1];
    message.extend(&answer[..28]);
    let checksum = Sum16BitWords::new().add_slice(&message).ones_complement();
    message[2..4].copy_from_slice(&checksum.to_ne_bytes());
    let length = message.len().try_into().expect("short");
    written(header(client, server, IpNumber::ICMP, length), &message)
}

fn header(from: SocketAddrV4, to: SocketAddrV4, protocol: IpNumber, length: u16) -> Ipv4Header {
    let (from, to) = (from.ip().octets(), to.ip().octets());
    Ipv4Header::new(length, 64, protocol, from, to).expect("short")
}

fn written(mut header: Ipv4Header, payload: &[u8]) -> Vec<u8> {
    header.header_checksum = header.calc_header_checksum();
    let mut packet = Vec::new();
    header.write(&mut packet).expect("a header");
    packet.extend(payload);
    packet
}
