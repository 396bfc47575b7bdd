// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads a packet's addresses and ports for `portolan trace` from the packet's first bytes, as the
//! packet path has left them. The packet path's own parser knows more and reads from the socket
//! buffer. This parser reads plain bytes, in the kernel and on the host.

use super::HEAD;
use crate::{Addr, Port, Protocol, V4, V6};

/// Source and destination of a packet or a socket call. IPv4 addresses are IPv4-mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Tuple {
    pub src: V6,
    pub dst: V6,
    pub src_port: Port,
    pub dst_port: Port,
    pub protocol: Protocol,
    /// 4 or 6; 0: nothing could be read.
    pub family: u8,
    /// TCP's flags, or the type of an ICMP message.
    pub signals: u8,
    /// Bits: [`Self::LATER_FRAGMENT`], [`Self::QUOTES`].
    pub kind: u8,
}

impl Tuple {
    // SAFETY: plain numbers, of which 0 is a valid value.
    pub const NONE: Self = unsafe { core::mem::zeroed() };
    /// Bit of `kind`: the packet is a fragment, but not the first one of its datagram, so it has no
    /// ports.
    pub const LATER_FRAGMENT: u8 = 1;
    /// Bit of `kind`: the packet is an ICMP error. The ports are those of the quoted packet,
    /// exchanged as in an answer to it.
    pub const QUOTES: u8 = 2;

    /// Whether both tuples have the same addresses and ports.
    #[inline(always)]
    pub fn leads_as(&self, other: &Self) -> bool {
        self.src == other.src
            && self.dst == other.dst
            && self.src_port == other.src_port
            && self.dst_port == other.dst_port
    }
}

impl V6 {
    /// Returns the IPv4 address in an IPv4-mapped address; None for any other address.
    pub const fn unmapped(self) -> Option<[u8; 4]> {
        match self.octets {
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] => Some([a, b, c, d]),
            _ => None,
        }
    }
}

const ETHERNET: u32 = 14;
const VLAN_TAG: u32 = 4;
/// Maximum number of IPv6 extension headers that are skipped.
const EXTENSIONS: u32 = 4;

/// The first bytes of a packet, and how many of them are valid.
#[derive(Clone, Copy)]
struct Head<'a> {
    bytes: &'a [u8; HEAD],
    len: u32,
}

impl Head<'_> {
    // VERIFIER: the mask bounds the index, whatever the verifier knows about `at`.
    #[inline(always)]
    fn byte(self, at: u32) -> u8 {
        self.bytes[at as usize & (HEAD - 1)]
    }
    #[inline(always)]
    fn has(self, at: u32, count: u32) -> bool {
        at <= HEAD as u32 && at + count <= self.len
    }
    /// Returns two bytes as a number in the host's order.
    #[inline(always)]
    fn half(self, at: u32) -> u16 {
        (self.byte(at) as u16) << 8 | self.byte(at + 1) as u16
    }
    /// Returns four bytes as they lie on the wire.
    #[inline(always)]
    fn word(self, at: u32) -> u32 {
        u32::from_ne_bytes([
            self.byte(at),
            self.byte(at + 1),
            self.byte(at + 2),
            self.byte(at + 3),
        ])
    }
    #[inline(always)]
    fn long(self, at: u32) -> V6 {
        V6::from_words([
            self.word(at),
            self.word(at + 4),
            self.word(at + 8),
            self.word(at + 12),
        ])
    }
    #[inline(always)]
    fn port(self, at: u32) -> Port {
        Port::from_host(self.half(at))
    }
}

/// Reads a packet's addresses, ports and protocol into `tuple`. `len` is the number of valid bytes
/// in `bytes`; with `link_layer` they begin with an Ethernet header. `work` is scratch memory.
#[inline(always)]
pub fn parse(bytes: &[u8; HEAD], len: u32, link_layer: bool, tuple: &mut Tuple, work: &mut u32) {
    *tuple = Tuple::NONE;
    let len = if len > HEAD as u32 { HEAD as u32 } else { len };
    let head = Head {
        bytes,
        // VERIFIER: the compiler must not conclude from the length that an index needs no mask.
        len: forget(work, len),
    };
    let mut l3 = 0;
    if link_layer {
        const IPV4: u16 = 0x0800;
        const IPV6: u16 = 0x86dd;
        const TAGS: [u16; 2] = [0x8100, 0x88a8];
        let mut kind = head.half(12);
        l3 = ETHERNET;
        if kind == TAGS[0] || kind == TAGS[1] {
            kind = head.half(16);
            l3 += VLAN_TAG;
        }
        if kind != IPV4 && kind != IPV6 {
            return;
        }
    }
    let l3 = forget(work, l3);
    let at = match head.byte(l3) >> 4 {
        4 => of_v4(head, l3, tuple),
        6 => of_v6(head, l3, tuple, work),
        _ => 0,
    };
    let at = forget(work, at);
    if at != 0 && tuple.kind & Tuple::LATER_FRAGMENT == 0 {
        transport(head, at, tuple);
    }
}

/// Fills in the addresses and the protocol; returns the offset of the transport header, or 0 if the
/// IP header is incomplete.
#[inline(always)]
fn of_v4(head: Head<'_>, l3: u32, tuple: &mut Tuple) -> u32 {
    if !head.has(l3, 20) {
        return 0;
    }
    tuple.family = 4;
    tuple.src = V4::from_word(head.word(l3 + 12)).widened();
    tuple.dst = V4::from_word(head.word(l3 + 16)).widened();
    tuple.protocol = Protocol(head.byte(l3 + 9));
    if head.half(l3 + 6) & 0x1fff != 0 {
        tuple.kind = Tuple::LATER_FRAGMENT;
    }
    l3 + (head.byte(l3) & 15) as u32 * 4
}

#[inline(always)]
fn of_v6(head: Head<'_>, l3: u32, tuple: &mut Tuple, work: &mut u32) -> u32 {
    const HOP_BY_HOP: u8 = 0;
    const ROUTING: u8 = 43;
    const FRAGMENT: u8 = 44;
    const OPTIONS: u8 = 60;
    if !head.has(l3, 40) {
        return 0;
    }
    tuple.family = 6;
    tuple.src = head.long(l3 + 8);
    tuple.dst = head.long(l3 + 24);
    let mut next = head.byte(l3 + 6);
    let mut at = l3 + 40;
    for _ in 0..EXTENSIONS {
        if !head.has(at, 8) {
            break;
        }
        match next {
            FRAGMENT => {
                if head.half(at + 2) & 0xfff8 != 0 {
                    tuple.kind = Tuple::LATER_FRAGMENT;
                }
                next = head.byte(at);
                at += 8;
            }
            HOP_BY_HOP | ROUTING | OPTIONS => {
                next = head.byte(at);
                at += (head.byte(at + 1) as u32 & 31) * 8 + 8;
            }
            _ => break,
        }
        let kept = forget(work, at << 8 | next as u32);
        (at, next) = (kept >> 8, kept as u8);
    }
    tuple.protocol = Protocol(next);
    at
}

/// Returns the same number, about whose value the compiler and the verifier know nothing.
// VERIFIER: a number from memory, so that the paths that led to it are the same from here on.
#[inline(always)]
fn forget(work: &mut u32, number: u32) -> u32 {
    // SAFETY: an exclusive reference.
    unsafe {
        core::ptr::write_volatile(work, number);
        core::ptr::read_volatile(work)
    }
}

#[inline(always)]
fn transport(head: Head<'_>, at: u32, tuple: &mut Tuple) {
    match tuple.protocol {
        Protocol::TCP if head.has(at, 14) => {
            tuple.signals = head.byte(at + 13);
            (tuple.src_port, tuple.dst_port) = (head.port(at), head.port(at + 2));
        }
        Protocol::UDP | Protocol::SCTP if head.has(at, 4) => {
            (tuple.src_port, tuple.dst_port) = (head.port(at), head.port(at + 2));
        }
        Protocol::ICMP if head.has(at, 8) => {
            let kind = head.byte(at);
            tuple.signals = kind;
            // Unreachable, source quench, redirect, time exceeded, parameter problem.
            if matches!(kind, 3 | 4 | 5 | 11 | 12) {
                let quoted = at + 8;
                let ports = quoted + (head.byte(quoted) & 15) as u32 * 4;
                quote(head, ports, tuple);
            }
        }
        Protocol::ICMPV6 if head.has(at, 8) => {
            let kind = head.byte(at);
            tuple.signals = kind;
            if kind < 128 {
                quote(head, at + 8 + 40, tuple);
            }
        }
        _ => {}
    }
}

/// Reads the ports of the packet that an ICMP error quotes. They are exchanged, because the error
/// goes to that packet's sender.
#[inline(always)]
fn quote(head: Head<'_>, ports: u32, tuple: &mut Tuple) {
    if head.has(ports, 4) {
        tuple.kind |= Tuple::QUOTES;
        (tuple.dst_port, tuple.src_port) = (head.port(ports), head.port(ports + 2));
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv6Addr};

    use super::*;

    fn read(packet: &[u8], link_layer: bool) -> Tuple {
        let mut bytes = [0xee; HEAD];
        bytes[..packet.len()].copy_from_slice(packet);
        let mut tuple = Tuple::NONE;
        parse(&bytes, packet.len() as u32, link_layer, &mut tuple, &mut 0);
        tuple
    }

    fn v4(protocol: u8, fragment: u16, rest: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 40, 0, 7];
        packet.extend(fragment.to_be_bytes());
        packet.extend([64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        packet.extend(rest);
        packet
    }

    fn v6(next: u8, rest: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0, 0, 20, next, 64];
        packet.extend("fd00::1".parse::<Ipv6Addr>().expect("one").octets());
        packet.extend("fd00::2".parse::<Ipv6Addr>().expect("one").octets());
        packet.extend(rest);
        packet
    }

    /// The TCP header of a SYN from port 1025 to port 80.
    const TCP: [u8; 20] = [
        4, 1, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0, 0, 0, 0, 0, 0,
    ];

    #[test]
    fn addresses_ports_and_tcp_flags_of_a_segment_are_read() {
        let frame = [&[0_u8; 12][..], &[8, 0], &v4(6, 0, &TCP)].concat();
        for (packet, link_layer) in [(v4(6, 0, &TCP), false), (frame, true)] {
            let tuple = read(&packet, link_layer);
            assert_eq!(tuple.src.unmapped(), Some([10, 0, 0, 1]));
            assert_eq!(tuple.dst.unmapped(), Some([10, 0, 0, 2]));
            assert_eq!((tuple.src_port.host(), tuple.dst_port.host()), (1025, 80));
            assert_eq!((tuple.family, tuple.signals, tuple.kind), (4, 2, 0));
        }
        let tag = [0x81, 0, 0, 7, 0x86, 0xdd];
        let tagged = [&[0_u8; 12][..], &tag, &v6(6, &TCP)].concat();
        let tuple = read(&tagged, true);
        let source: IpAddr = tuple.src.into();
        assert_eq!(source.to_string(), "fd00::1");
        assert_eq!((tuple.family, tuple.dst_port.host()), (6, 80));
    }

    #[test]
    fn ports_are_behind_extension_headers_or_quoted_and_later_fragments_have_none() {
        let fragment = |offset: u8| [17, 0, 0, offset, 0, 0, 0, 9, 4, 1, 0, 53, 0, 8, 0, 0];
        let extended = [&[44, 0, 0, 0, 0, 0, 0, 0][..], &fragment(1)].concat();
        let error = [vec![3, 3, 0, 0, 0, 0, 0, 0], v4(6, 0, &TCP)].concat();
        for (packet, protocol, signals, ports, kind) in [
            (v6(0, &extended), 17, 0, [1025, 53], 0),
            (v4(17, 8, &TCP), 17, 0, [0, 0], Tuple::LATER_FRAGMENT),
            (v6(44, &fragment(8)), 17, 0, [0, 0], Tuple::LATER_FRAGMENT),
            // Those of the quoted packet, exchanged.
            (v4(1, 0, &error), 1, 3, [80, 1025], Tuple::QUOTES),
        ] {
            let tuple = read(&packet, false);
            let found = [tuple.src_port, tuple.dst_port].map(Port::host);
            assert_eq!((found, tuple.kind), (ports, kind), "{packet:?}");
            assert_eq!((tuple.protocol.0, tuple.signals), (protocol, signals));
        }
    }

    #[test]
    fn no_addresses_or_ports_are_read_from_invalid_or_short_packets() {
        assert_eq!(read(&[0; 60], true), Tuple::NONE);
        assert_eq!(read(&[], false).family, 0);
        let packet = v4(6, 0, &TCP);
        for length in 0..20 {
            assert_eq!(read(&packet[..length], false).family, 0, "{length}");
        }
        for length in 20..34 {
            let tuple = read(&packet[..length], false);
            assert_eq!((tuple.family, tuple.dst_port), (4, Port::ANY), "{length}");
        }
    }

    proptest::proptest! {
        #[test]
        fn the_parser_never_panics(bytes: [u8; HEAD], len in 0_u32..2000, link_layer: bool) {
            let mut tuple = Tuple::NONE;
            parse(&bytes, len, link_layer, &mut tuple, &mut 0);
        }
    }
}
