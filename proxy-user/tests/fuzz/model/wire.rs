// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parses packets byte by byte, by the standards. Shares no code with the programs.

use std::net::{IpAddr, SocketAddr};

pub(crate) use super::sums::{
    fault, follow_half, octets, same, sum, transport_sum, with_ends, with_icmp_sum,
};

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const SCTP: u8 = 132;
pub(crate) const ICMP: u8 = 1;
pub(crate) const ICMPV6: u8 = 58;

pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const RST: u8 = 4;
pub(crate) const ACK: u8 = 16;

/// Protocol, source and destination of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct Tuple {
    pub(crate) protocol: u8,
    pub(crate) src: SocketAddr,
    pub(crate) dst: SocketAddr,
}

impl Tuple {
    pub(crate) const fn new(protocol: u8, src: SocketAddr, dst: SocketAddr) -> Self {
        Self { protocol, src, dst }
    }
    pub(crate) const fn reversed(self) -> Self {
        Self::new(self.protocol, self.dst, self.src)
    }
    /// Returns true for the protocols that services can have.
    pub(crate) const fn has_ports(&self) -> bool {
        matches!(self.protocol, TCP | UDP | SCTP)
    }
}

/// Whether a packet is a fragment; the number is the identification of its datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fragment {
    No,
    First(u32),
    Later(u32),
}

/// The parsed headers of a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Headers {
    /// Offsets in the frame: of the IP header, of the transport header behind all extensions, and
    /// of the packet's end by its length field.
    pub(crate) l3: usize,
    pub(crate) l4: usize,
    pub(crate) end: usize,
    /// Ports in it are 0 in a later fragment and for protocols without ports.
    pub(crate) tuple: Tuple,
    pub(crate) fragment: Fragment,
    /// At ingress, the client's interface as in a flow's key, so that fragments of different
    /// clients are not mixed; else 0.
    pub(crate) interface: u32,
    /// True if the packet is quoted in an ICMP error.
    pub(crate) is_quoted: bool,
    /// The TCP flags; for SCTP the TCP flags with the same meaning as the chunk type.
    pub(crate) flags: u8,
    pub(crate) sequence: u32,
    pub(crate) acknowledgement: u32,
    /// True if a TCP segment has more payload than fills up a short frame.
    pub(crate) carries_data: bool,
    /// The timestamp in a TCP option; 0 without one.
    pub(crate) timestamp: u32,
    /// The SCTP tag; `initiate_tag`: the tag that the sender of an INIT or INIT ACK wants.
    pub(crate) tag: u32,
    pub(crate) initiate_tag: u32,
}

impl Headers {
    pub(crate) fn is_v6(&self) -> bool {
        self.tuple.src.is_ipv6()
    }
    /// Returns true if the packet has neither IPv4 options nor IPv6 extension headers.
    pub(crate) fn is_plain(&self) -> bool {
        self.l4 - self.l3 == if self.is_v6() { 40 } else { 20 }
    }
    /// Returns the offset of the hop limit.
    pub(crate) fn hop(&self) -> usize {
        self.l3 + if self.is_v6() { 7 } else { 8 }
    }
    pub(crate) fn is_later(&self) -> bool {
        matches!(self.fragment, Fragment::Later(_))
    }
    pub(crate) fn icmp_type(&self, frame: &[u8]) -> Option<u8> {
        let icmp = if self.is_v6() { ICMPV6 } else { ICMP };
        let first = frame.get(self.l4).copied();
        first.filter(|_| self.tuple.protocol == icmp)
    }
    /// Returns true if the packet begins a flow: it is a SYN, an INIT or a UDP datagram.
    pub(crate) fn begins(&self) -> bool {
        self.tuple.protocol == UDP || self.flags & (SYN | ACK | RST) == SYN
    }
}

/// Returns the timestamp in a TCP segment's option, RFC 7323; None without that option.
fn timestamp(frame: &[u8], l4: usize) -> Option<u32> {
    let end = l4 + 4 * usize::from(*frame.get(l4 + 12)? >> 4);
    let mut at = l4 + 20;
    while at < end {
        match *frame.get(at)? {
            0 => return None,
            1 => at += 1,
            8 => return word(frame, at + 2),
            _ => at += usize::from(*frame.get(at + 1)?).max(2),
        }
    }
    None
}

fn bytes<const N: usize>(frame: &[u8], at: usize) -> Option<[u8; N]> {
    frame.get(at..at + N)?.try_into().ok()
}

fn half(frame: &[u8], at: usize) -> Option<u16> {
    bytes(frame, at).map(u16::from_be_bytes)
}

pub(crate) fn word(frame: &[u8], at: usize) -> Option<u32> {
    bytes(frame, at).map(u32::from_be_bytes)
}

fn address(frame: &[u8], at: usize, v6: bool) -> Option<IpAddr> {
    match v6 {
        true => bytes::<16>(frame, at).map(IpAddr::from),
        false => bytes::<4>(frame, at).map(IpAddr::from),
    }
}

/// Parses the headers of a frame; None if it is not IP or is cut short.
pub(crate) fn read(frame: &[u8]) -> Option<Headers> {
    let mut l3 = 14;
    let mut kind = half(frame, 12)?;
    for _ in 0..2 {
        if matches!(kind, 0x8100 | 0x88a8) {
            l3 += 4;
            kind = half(frame, l3 - 2)?;
        }
    }
    match kind {
        0x0800 => read_at(frame, l3, false, false),
        0x86dd => read_at(frame, l3, true, false),
        _ => None,
    }
}

/// Parses the headers of a packet that begins at `l3`. A quoted one may be cut off after its ports.
pub(crate) fn read_at(frame: &[u8], l3: usize, v6: bool, is_quoted: bool) -> Option<Headers> {
    let version = frame.get(l3)? >> 4;
    if version != if v6 { 6 } else { 4 } {
        return None;
    }
    let mut fragment = Fragment::No;
    let (ends, mut l4, mut protocol, end);
    if v6 {
        (ends, l4, protocol) = (l3 + 8, l3 + 40, *frame.get(l3 + 6)?);
        end = l4 + usize::from(half(frame, l3 + 4)?);
        while matches!(protocol, 0 | 43 | 44 | 60) {
            let next = *frame.get(l4)?;
            if protocol == 44 {
                let offset = half(frame, l4 + 2)? >> 3;
                let id = word(frame, l4 + 4)?;
                fragment = match offset {
                    0 => Fragment::First(id),
                    _ => Fragment::Later(id),
                };
                l4 += 8;
            } else {
                l4 += 8 + 8 * usize::from(*frame.get(l4 + 1)?);
            }
            protocol = next;
            if matches!(fragment, Fragment::Later(_)) {
                break;
            }
        }
    } else {
        let length = 4 * usize::from(frame[l3] & 15);
        (ends, l4, protocol) = (l3 + 12, l3 + length, *frame.get(l3 + 9)?);
        end = l3 + usize::from(half(frame, l3 + 2)?);
        let (id, place) = (half(frame, l3 + 4)?, half(frame, l3 + 6)?);
        if length < 20 {
            return None;
        }
        if place & 0x1fff != 0 {
            fragment = Fragment::Later(id.into());
        } else if place & 0x2000 != 0 {
            fragment = Fragment::First(id.into());
        }
    }
    let size = if v6 { 16 } else { 4 };
    let (src, dst) = (address(frame, ends, v6)?, address(frame, ends + size, v6)?);
    let mut headers = Headers {
        l3,
        l4,
        end,
        tuple: Tuple::new(protocol, (src, 0).into(), (dst, 0).into()),
        fragment,
        interface: 0,
        is_quoted,
        flags: 0,
        sequence: 0,
        acknowledgement: 0,
        carries_data: false,
        timestamp: 0,
        tag: 0,
        initiate_tag: 0,
    };
    if !headers.is_later() && headers.tuple.has_ports() {
        headers.tuple.src.set_port(half(frame, l4)?);
        headers.tuple.dst.set_port(half(frame, l4 + 2)?);
        match protocol {
            TCP if frame.len() >= l4 + 20 => {
                headers.flags = frame[l4 + 13];
                headers.sequence = word(frame, l4 + 4)?;
                headers.acknowledgement = word(frame, l4 + 8)?;
                headers.timestamp = timestamp(frame, l4).unwrap_or(0);
                let length = 4 * usize::from(frame[l4 + 12] >> 4);
                headers.carries_data = frame.len() > l4 + length + 6;
            }
            SCTP if frame.len() >= l4 + 16 => {
                headers.flags = match frame[l4 + 12] {
                    1 => SYN,
                    2 => SYN | ACK,
                    6 | 14 => RST,
                    _ => ACK,
                };
                headers.tag = word(frame, l4 + 4)?;
                headers.initiate_tag = word(frame, l4 + 16).unwrap_or(0);
            }
            UDP if frame.len() >= l4 + 8 => {}
            _ if is_quoted => {}
            _ => return None,
        }
    }
    Some(headers)
}
