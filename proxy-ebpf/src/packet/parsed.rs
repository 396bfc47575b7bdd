// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! A parsed packet: values and offsets. Filled in by `parse`, read by all other modules.

use proxy_common::{
    Addr, FlowKey, Port, Protocol,
    flow::{ClientInterface, Signals},
};

use super::{Skb, headers::Ports};

/// What follows a packet's IP header.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// TCP, UDP or SCTP, and no fragment.
    Whole,
    /// The first fragment of a datagram, which has the transport header.
    FirstFragment,
    /// A later fragment of a datagram, which has no ports.
    LaterFragment,
    /// An ICMP or ICMPv6 message; its type is in [`Packet::icmp_type`].
    Icmp,
}

/// A packet's values, and the offsets of its headers; no pointer.
#[derive(Clone, Copy)]
pub struct Packet<A> {
    /// The packet's 5-tuple. Ports are zero for later fragments and ICMP.
    pub key: FlowKey<A>,
    /// Offset of the IP header, and below that of the transport header.
    pub l3: u32,
    pub l4: u32,
    pub shape: Shape,
    pub signals: Signals,
    pub icmp_type: u8,
    /// The IPv4 header's checksum; 0 for IPv6.
    pub ip_checksum: u16,
    /// Only for fragments: the datagram's identification.
    pub fragment_id: u32,
    /// Only for fragments at ingress: the client's interface.
    pub fragment_interface: ClientInterface,
}

/// The fields of an IP header, before the transport header is read.
#[derive(Clone, Copy)]
pub struct Network<A> {
    pub src: A,
    pub dst: A,
    pub protocol: Protocol,
    pub l4: u32,
    pub ip_checksum: u16,
    pub fragment_id: u32,
    pub first_fragment: bool,
    pub later_fragment: bool,
}

impl<A: Addr> Packet<A> {
    #[inline(always)]
    pub fn ports(&self) -> Ports {
        Ports::of(&self.key)
    }
    /// SCTP: returns the packet's verification tag, as on the wire; 0 if it cannot be read.
    #[inline(always)]
    pub fn tag(&self, skb: Skb) -> u32 {
        const TAG: u32 = 4;
        skb.load(self.l4 + TAG).unwrap_or(0)
    }
    /// SCTP: returns the tag that the sender of an INIT or INIT ACK wants in packets to itself (RFC
    /// 9260, 3.3.2), as on the wire; 0 if it cannot be read.
    #[inline(always)]
    pub fn initiate_tag(&self, skb: Skb) -> u32 {
        const INITIATE_TAG: u32 = 16;
        skb.load(self.l4 + INITIATE_TAG).unwrap_or(0)
    }
    /// Returns a TCP segment's sequence number, in host order; 0 if it cannot be read.
    #[inline(always)]
    pub fn sequence(&self, skb: Skb) -> u32 {
        const SEQUENCE: u32 = 4;
        skb.load(self.l4 + SEQUENCE).map_or(0, u32::from_be)
    }
    /// Returns the number in which SYNs of two connections with the same ends differ: TCP's
    /// sequence number, or SCTP's initiate tag.
    #[inline(always)]
    pub fn first_number(&self, skb: Skb) -> u32 {
        if self.key.protocol == Protocol::TCP {
            self.sequence(skb)
        } else {
            self.initiate_tag(skb)
        }
    }
    /// Returns a TCP segment's acknowledgement number, in host order; 0 if it cannot be read.
    #[inline(always)]
    pub fn acknowledgement(&self, skb: Skb) -> u32 {
        const ACKNOWLEDGEMENT: u32 = 8;
        skb.load(self.l4 + ACKNOWLEDGEMENT).map_or(0, u32::from_be)
    }
    /// Whether a TCP segment has payload. Six bytes or fewer may be what fills up a short frame.
    #[inline(always)]
    pub fn carries_data(&self, skb: Skb) -> bool {
        const LENGTH: u32 = 12;
        const FILLING: u32 = 6;
        let words = skb.load::<u8>(self.l4 + LENGTH).unwrap_or(0) >> 4;
        skb.len() > self.l4 + words as u32 * 4 + FILLING
    }
    /// Returns a TCP segment's timestamp, in host order; 0 if the segment has no timestamp at an
    /// even offset, where every stack puts it.
    #[inline(never)]
    pub fn timestamp(&self, skb: Skb) -> u32 {
        const OPTIONS: u32 = 20;
        /// Kind and length of the timestamp option.
        const TIMESTAMP: u16 = u16::from_ne_bytes([8, 10]);
        let (mut offset, end) = match skb.load::<u8>(self.l4 + 12) {
            Some(length) if self.key.protocol == Protocol::TCP => {
                (OPTIONS, (length >> 4) as u32 * 4)
            }
            _ => return 0,
        };
        // At most 40 bytes of options, 10 of them the timestamp's.
        for _ in 0..16 {
            if offset + 10 > end {
                return 0;
            }
            if skb.load(self.l4 + offset) == Some(TIMESTAMP) {
                return skb.load(self.l4 + offset + 2).map_or(0, u32::from_be);
            }
            offset += 2;
        }
        0
    }
    /// Begins a new packet, of which only the IP header's offset is known.
    #[inline(always)]
    pub fn begin(&mut self, l3: u32) {
        self.key.set_ports(Port::ANY, Port::ANY);
        self.l3 = l3;
        self.shape = Shape::Whole;
        self.signals = Signals::NONE;
    }
}
