// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes frames of described packets, byte by byte.

use std::net::{IpAddr, SocketAddr};

use clap::ValueEnum;
use lab::traffic::crc32c;

use crate::model::wire::{
    ACK, FIN, ICMP, ICMPV6, RST, SCTP, SYN, TCP, Tuple, UDP, octets, sum, transport_sum,
};

/// The sequence number of a client's SYN.
const CLIENT_SEQUENCE: u32 = 0x5000_0000;
/// The sequence number of a backend's SYN: soon after it, numbers wrap around to 0.
const BACKEND_SEQUENCE: u32 = 0xffff_f000;
/// The SCTP tag that a client wants in packets to it; the next constant is the backend's.
const CLIENT_TAG: u32 = 0x900;
const BACKEND_TAG: u32 = 0xa00;
/// The backend's tag minus the client's.
pub(crate) const OTHER_TAG: i32 = 0x100;
/// A wrong acknowledgement number or tag, for client and backend.
const WRONG_NUMBER: u32 = 0x1234_5678;

/// What a packet does in its conversation.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
pub(crate) enum Kind {
    Syn,
    /// For ICMP an echo reply; every other packet of ICMP is a request.
    SynAck,
    Ack,
    /// An acknowledgement of a number that was never sent.
    BadAck,
    Fin,
    /// A FIN that acknowledges a number that was never sent.
    BadFin,
    /// A RST; for SCTP a SHUTDOWN COMPLETE.
    Rst,
    /// A RST with ACK; for SCTP an ABORT.
    Abort,
    Data,
}

impl Kind {
    /// Returns what the first packet of a conversation does.
    pub(crate) fn first(protocol: u8) -> Self {
        match protocol {
            UDP => Self::Data,
            _ => Self::Syn,
        }
    }
}

/// The unusual properties of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Shape {
    /// Number of payload bytes.
    pub(crate) payload: i64,
    /// Number of words of IPv4 options, or of IPv6 extension headers.
    pub(crate) options: i64,
    pub(crate) vlan: bool,
    /// UDP over IPv4 or SCTP without a checksum.
    pub(crate) unsummed: bool,
    /// The transport's checksum is wrong.
    pub(crate) bad_sum: bool,
    /// The frame is addressed to another machine.
    pub(crate) other_mac: bool,
    /// For a fragment: the datagram's identification, and true for the first fragment.
    pub(crate) fragment: Option<(u16, bool)>,
    /// How many bytes are cut off at the frame's end.
    pub(crate) cut: i64,
    /// TCP: how far the sequence number is ahead of the number after the sender's SYN. SCTP: how
    /// far the tag is from the correct one.
    pub(crate) ahead: i64,
    /// TCP: the same for its acknowledgement number. SCTP: for the tag that an INIT ACK wants.
    pub(crate) acked: i64,
    /// The TCP timestamp; 0 for none.
    pub(crate) timestamp: i64,
}

/// A packet to be made: addresses and ports, what it does, and its unusual properties.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Packet {
    pub(crate) tuple: Tuple,
    pub(crate) kind: Kind,
    pub(crate) shape: Shape,
}

pub(crate) const SENDER_MAC: [u8; 6] = [2, 0, 0, 0, 9, 9];
pub(crate) const OTHER_MAC: [u8; 6] = [2, 0, 0, 0, 7, 7];

impl Packet {
    /// Returns the frame to this MAC; `by_client`: with a client's numbers, else a backend's.
    pub(crate) fn frame(&self, mac: [u8; 6], by_client: bool) -> Vec<u8> {
        let mut body = self.transport(by_client);
        match self.shape.fragment {
            // The first 24 bytes have the ports of every transport, but a TCP header can be longer.
            Some((_, true)) => body.truncate(24),
            Some((_, false)) => body = vec![7; 16],
            None => {}
        }
        self.around(mac, &body)
    }

    /// Returns the frame with this transport header and payload.
    fn around(&self, mac: [u8; 6], body: &[u8]) -> Vec<u8> {
        let mac = if self.shape.other_mac { OTHER_MAC } else { mac };
        let mut frame = [mac, SENDER_MAC].concat();
        if self.shape.vlan {
            frame.extend([0x81, 0, 0, 7]);
        }
        if self.tuple.src.is_ipv6() {
            frame.extend([0x86, 0xdd]);
            frame.extend(self.ipv6(body));
        } else {
            frame.extend([8, 0]);
            frame.extend(self.ipv4(body));
        }
        frame.truncate(frame.len() - (self.shape.cut as usize).min(body.len()));
        frame
    }

    fn ipv4(&self, body: &[u8]) -> Vec<u8> {
        let words = self.shape.options.min(10) as usize;
        let length = 20 + 4 * words;
        let total = ((length + body.len()) as u16).to_be_bytes();
        let (id, place) = match self.shape.fragment {
            Some((id, true)) => (id, 0x2000),
            Some((id, false)) => (id, 3),
            None => (0, 0x4000_u16),
        };
        let ([a, b], [c, d]) = (id.to_be_bytes(), place.to_be_bytes());
        let protocol = self.tuple.protocol;
        let mut header = vec![0x40 | (length / 4) as u8, 0, total[0], total[1], a, b, c, d];
        header.extend([64, protocol, 0, 0]);
        header.extend(octets(self.tuple.src.ip()));
        header.extend(octets(self.tuple.dst.ip()));
        header.extend(vec![1; 4 * words]);
        let checksum = (!sum(&[&header])).to_be_bytes();
        header[10..12].copy_from_slice(&checksum);
        [&header, body].concat()
    }

    fn ipv6(&self, body: &[u8]) -> Vec<u8> {
        let protocol = self.tuple.protocol;
        let mut kinds = vec![60; self.shape.options.min(8) as usize];
        kinds.extend(self.shape.fragment.map(|_| 44));
        let mut extensions = Vec::new();
        for n in 0..kinds.len() {
            let next = kinds.get(n + 1).copied().unwrap_or(protocol);
            match self.shape.fragment {
                Some((id, first)) if kinds[n] == 44 => {
                    let place = if first { 1 } else { 3 << 3 };
                    extensions.extend([next, 0, 0, place, 0, 0]);
                    extensions.extend(id.to_be_bytes());
                }
                _ => extensions.extend([next, 0, 1, 4, 0, 0, 0, 0]),
            }
        }
        let length = (extensions.len() + body.len()) as u16;
        let mut header = vec![0x60, 0, 0, 0];
        header.extend(length.to_be_bytes());
        header.extend([kinds.first().copied().unwrap_or(protocol), 64]);
        header.extend(octets(self.tuple.src.ip()));
        header.extend(octets(self.tuple.dst.ip()));
        [&header, &extensions[..], body].concat()
    }

    /// Returns the transport header and the payload.
    fn transport(&self, by_client: bool) -> Vec<u8> {
        let Tuple { protocol, src, dst } = self.tuple;
        let payload = 0..self.shape.payload as u8;
        let payload: Vec<u8> = payload.map(|n| n.wrapping_mul(37)).collect();
        let ports = [src.port().to_be_bytes(), dst.port().to_be_bytes()].concat();
        let mut body = match protocol {
            TCP => {
                let (flags, sequence, acknowledgement) = self.numbers(by_client);
                let numbers = [sequence.to_be_bytes(), acknowledgement.to_be_bytes()].concat();
                let stamp = (self.shape.timestamp as u32).to_be_bytes();
                let mut option = [&[1, 1, 8, 10][..], &stamp, &[0; 4]].concat();
                option.truncate(if self.shape.timestamp == 0 { 0 } else { 12 });
                let words = 0x50 + 4 * option.len() as u8;
                let rest = [words, flags, 2, 0, 0, 0, 0, 0];
                [&ports[..], &numbers, &rest, &option, &payload].concat()
            }
            UDP => {
                let length = (8 + payload.len() as u16).to_be_bytes();
                [&ports[..], &length, &[0, 0], &payload].concat()
            }
            SCTP => {
                let chunk = match self.kind {
                    Kind::Syn => 1,
                    Kind::SynAck => 2,
                    Kind::Rst => 14,
                    Kind::Abort => 6,
                    _ => 0,
                };
                let (tag, wanted) = self.tags(by_client);
                let tag = [tag.to_be_bytes(), [0; 4]].concat();
                let chunk = [chunk, 0, 0, 16];
                let wanted = wanted.to_be_bytes();
                [&ports[..], &tag, &chunk, &wanted, &[5; 8], &payload].concat()
            }
            ICMP | ICMPV6 => {
                let kind = match (protocol, self.kind) {
                    (ICMP, Kind::SynAck) => 0,
                    (ICMP, _) => 8,
                    (_, Kind::SynAck) => 129,
                    _ => 128,
                };
                [&[kind, 0, 0, 0, 0, 7, 0, 1], &payload[..]].concat()
            }
            _ => payload,
        };
        self.fill_in_sum(&mut body);
        body
    }

    fn numbers(&self, by_client: bool) -> (u8, u32, u32) {
        let (own, other) = match by_client {
            true => (CLIENT_SEQUENCE, BACKEND_SEQUENCE + 1),
            false => (BACKEND_SEQUENCE, CLIENT_SEQUENCE + 1),
        };
        let Shape { ahead, acked, .. } = self.shape;
        let own = own.wrapping_add_signed(ahead as i32);
        let next = own.wrapping_add(1);
        let other = other.wrapping_add_signed(acked as i32);
        match self.kind {
            Kind::Syn => (SYN, own, 0),
            Kind::SynAck => (SYN | ACK, own, other),
            Kind::Ack | Kind::Data => (ACK, next, other),
            Kind::BadAck => (ACK, next, WRONG_NUMBER),
            Kind::Fin => (FIN | ACK, next, other),
            Kind::BadFin => (FIN | ACK, next, WRONG_NUMBER),
            Kind::Rst => (RST, next, 0),
            Kind::Abort => (RST | ACK, next, other),
        }
    }

    /// Returns SCTP's tag of the packet, and the tag that an INIT's or INIT ACK's sender wants.
    fn tags(&self, by_client: bool) -> (u32, u32) {
        let (own, other) = match by_client {
            true => (CLIENT_TAG, BACKEND_TAG),
            false => (BACKEND_TAG, CLIENT_TAG),
        };
        let tag = match self.kind {
            Kind::Syn => 0,
            Kind::BadAck | Kind::BadFin => WRONG_NUMBER,
            _ => other.wrapping_add_signed(self.shape.ahead as i32),
        };
        (tag, own.wrapping_add_signed(self.shape.acked as i32))
    }

    fn fill_in_sum(&self, body: &mut [u8]) {
        let Tuple { protocol, src, dst } = self.tuple;
        let wrong = u16::from(self.shape.bad_sum);
        let unsummed = self.shape.unsummed;
        if protocol == SCTP {
            let crc = if unsummed { 0 } else { crc32c(body) };
            let crc = crc ^ u32::from(wrong) << 9;
            body[8..12].copy_from_slice(&crc.to_le_bytes());
            return;
        }
        let at = match protocol {
            TCP => 16,
            UDP => 6,
            ICMP | ICMPV6 => 2,
            _ => return,
        };
        if protocol == UDP && unsummed {
            return;
        }
        let sum = transport_sum(protocol, src.ip(), dst.ip(), body);
        let mut checksum = (!sum).wrapping_add(wrong * 0x101);
        if checksum == 0 && protocol == UDP {
            checksum = 0xffff;
        }
        body[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
    }
}

/// Returns a frame to this MAC with any bytes behind its IP header and a right checksum in them.
pub(crate) fn raw(mac: [u8; 6], ends: (IpAddr, IpAddr), protocol: u8, body: &[u8]) -> Vec<u8> {
    let packet = Packet {
        tuple: Tuple::new(protocol, at(ends.0, 0), at(ends.1, 0)),
        kind: Kind::Data,
        shape: Shape::default(),
    };
    let mut body = body.to_vec();
    packet.fill_in_sum(&mut body);
    packet.around(mac, &body)
}

/// Returns the text of a MAC.
pub(crate) fn text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

pub(crate) fn at(address: IpAddr, port: u16) -> SocketAddr {
    SocketAddr::new(address, port)
}
