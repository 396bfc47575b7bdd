// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Layouts of packet headers, naturally aligned. Multi-byte numbers are as on the wire.

use proxy_common::{FlowKey, Port, Protocol, V4, V6, check};

pub const ETHERTYPE_IPV4: u16 = 0x0800_u16.to_be();
pub const ETHERTYPE_IPV6: u16 = 0x86dd_u16.to_be();
pub const ETHERTYPE_VLAN: u16 = 0x8100_u16.to_be();
pub const ETHERTYPE_QINQ: u16 = 0x88a8_u16.to_be();

/// Offset of the Ethertype in an Ethernet header.
pub const ETHERTYPE: u32 = 12;
pub const ETHERNET_LEN: u32 = 14;
pub const VLAN_LEN: u32 = 4;
pub const IPV4_LEN: u32 = 20;
pub const IPV6_LEN: u32 = 40;

#[derive(Clone, Copy)]
#[repr(C)]
pub struct Ipv4Header {
    pub version_ihl: u8,
    pub tos: u8,
    pub total_length: u16,
    pub id: u16,
    pub fragment: u16,
    pub ttl: u8,
    pub protocol: Protocol,
    pub checksum: u16,
    pub src: V4,
    pub dst: V4,
}

impl Ipv4Header {
    pub const MORE_FRAGMENTS: u16 = 0x2000_u16.to_be();
    pub const DONT_FRAGMENT: u16 = 0x4000_u16.to_be();
    pub const OFFSET: u16 = 0x1fff_u16.to_be();

    /// Whether the packet has no options and is no fragment.
    #[inline(always)]
    pub fn is_plain(&self) -> bool {
        self.version_ihl == 0x45 && self.fragment & (Self::MORE_FRAGMENTS | Self::OFFSET) == 0
    }
    /// Returns time to live and protocol as the one 16-bit word that the header's checksum covers.
    #[inline(always)]
    pub fn ttl_protocol(&self) -> u16 {
        u16::from_ne_bytes([self.ttl, self.protocol.0])
    }
    /// Returns the header's length in bytes; 0 if the version is not 4.
    #[inline(always)]
    pub fn len(&self) -> u32 {
        if self.version_ihl >> 4 == 4 {
            (self.version_ihl as u32 & 0xf) * 4
        } else {
            0
        }
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct Ipv6Header {
    pub version_class_flow: u32,
    pub payload_length: u16,
    pub next_header: Protocol,
    pub hop_limit: u8,
    // In words, so that the compiler does not copy addresses byte by byte.
    pub src: [u32; 4],
    pub dst: [u32; 4],
}

#[inline(always)]
fn by_words(words: &[u32; 4]) -> V6 {
    V6::from_words([words[0], words[1], words[2], words[3]])
}

impl Ipv6Header {
    #[inline(always)]
    pub fn src(&self) -> V6 {
        by_words(&self.src)
    }
    #[inline(always)]
    pub fn dst(&self) -> V6 {
        by_words(&self.dst)
    }
    #[inline(always)]
    pub fn is_ipv6(&self) -> bool {
        self.version_class_flow & 0xf0_u32.to_le() == 0x60_u32.to_le()
    }
}

/// An IP header without options, and the first four bytes behind it: the ports, unless it is ICMP.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Start<H> {
    pub ip: H,
    pub ports: Ports,
}

/// The first four bytes of a TCP, UDP or SCTP header.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Ports {
    pub src: Port,
    pub dst: Port,
}

impl Ports {
    #[inline(always)]
    pub fn of<A>(key: &FlowKey<A>) -> Self {
        Self {
            src: key.src_port,
            dst: key.dst_port,
        }
    }
    /// Returns the first byte, which in an ICMP message is the type.
    #[inline(always)]
    pub fn icmp_type(self) -> u8 {
        self.src.0.to_ne_bytes()[0]
    }
    /// Returns both ports as one word, as they lie in memory.
    #[inline(always)]
    pub fn word(self) -> u32 {
        check::join(self.src.0, self.dst.0)
    }
    #[inline(always)]
    pub fn from_word(word: u32) -> Self {
        let [a, b, c, d] = word.to_ne_bytes();
        Self {
            src: Port(u16::from_ne_bytes([a, b])),
            dst: Port(u16::from_ne_bytes([c, d])),
        }
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct UdpHeader {
    pub ports: Ports,
    pub length: u16,
    pub checksum: u16,
}

/// What stands in front of a carried packet.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct OuterHeader<H> {
    pub ip: H,
    pub udp: UdpHeader,
    /// In halves, the lower one first: a long word would be aligned.
    pub token: [u32; 2],
}

/// The TCP header up to its flags, or the SCTP header and its first chunk's type.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct TcpOrSctpStart {
    pub ports: Ports,
    pub sequence_or_tag: u32,
    pub acknowledgement_or_checksum: u32,
    /// TCP: data offset. SCTP: type of the first chunk.
    pub offset_or_chunk: u8,
    pub flags: u8,
    pub window_or_length: u16,
}

/// The TCP header without options.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct TcpHeader {
    pub ports: Ports,
    pub sequence: u32,
    pub acknowledgement: u32,
    pub offset: u8,
    pub flags: u8,
    pub window: u16,
    pub checksum: u16,
    pub urgent: u16,
}

/// Offsets of the checksums in the headers of TCP, UDP and SCTP.
pub const TCP_CHECKSUM: u32 = 16;
pub const UDP_CHECKSUM: u32 = 6;
pub const SCTP_CHECKSUM: u32 = 8;
/// Offset of the checksum in ICMP and ICMPv6 messages.
pub const ICMP_CHECKSUM: u32 = 2;
pub const ICMP_LEN: u32 = 8;
