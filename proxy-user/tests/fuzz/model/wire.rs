// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads packets and changes their ends, byte by byte and by the standards; shares no code with the programs.

use std::net::{IpAddr, SocketAddr};

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const SCTP: u8 = 132;
pub(crate) const ICMP: u8 = 1;
pub(crate) const ICMPV6: u8 = 58;

pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const RST: u8 = 4;
pub(crate) const ACK: u8 = 16;

/// Protocol, source and destination.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct Tuple {
    pub(crate) protocol: u8,
    pub(crate) src: SocketAddr,
    pub(crate) dst: SocketAddr,
}

impl Tuple {
    pub(crate) fn reversed(self) -> Self {
        Self {
            src: self.dst,
            dst: self.src,
            ..self
        }
    }
}

/// Whether a packet is a fragment, with the datagram's identification.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fragment {
    No,
    First(u32),
    Later(u32),
}

/// A packet's headers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Headers {
    /// Offsets of the IP header, of what follows it and its extensions, and of the packet's end by its length field.
    pub(crate) l3: usize,
    pub(crate) l4: usize,
    pub(crate) end: usize,
    /// Ports are 0 for a later fragment, and for protocols without.
    pub(crate) tuple: Tuple,
    pub(crate) fragment: Fragment,
    /// Quoted by an ICMP error.
    pub(crate) is_quoted: bool,
    /// TCP's flags; for SCTP the flags that mean the same.
    pub(crate) flags: u8,
    pub(crate) sequence: u32,
    pub(crate) acknowledgement: u32,
}

impl Headers {
    pub(crate) fn is_v6(&self) -> bool {
        self.tuple.src.is_ipv6()
    }
    pub(crate) fn icmp_type(&self, frame: &[u8]) -> Option<u8> {
        let icmp = if self.is_v6() { ICMPV6 } else { ICMP };
        (self.tuple.protocol == icmp).then(|| frame[self.l4])
    }
    /// A SYN or an INIT.
    pub(crate) fn begins(&self) -> bool {
        self.tuple.protocol == UDP || self.flags & (SYN | ACK | RST) == SYN
    }
}

fn half(frame: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?))
}

fn word(frame: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(frame.get(at..at + 4)?.try_into().ok()?))
}

pub(crate) fn address(frame: &[u8], at: usize, v6: bool) -> Option<IpAddr> {
    if v6 {
        let octets: [u8; 16] = frame.get(at..at + 16)?.try_into().ok()?;
        return Some(octets.into());
    }
    let octets: [u8; 4] = frame.get(at..at + 4)?.try_into().ok()?;
    Some(octets.into())
}

/// Reads a frame; `None` if it is not IP, or cut short.
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
        0x0800 => read_ip(frame, l3, false),
        0x86dd => read_ip(frame, l3, true),
        _ => None,
    }
}

/// Reads a packet that begins at `l3` and may be cut off after its ports.
pub(crate) fn read_quoted(frame: &[u8], l3: usize, v6: bool) -> Option<Headers> {
    read_with(frame, l3, v6, true)
}

fn read_ip(frame: &[u8], l3: usize, v6: bool) -> Option<Headers> {
    read_with(frame, l3, v6, false)
}

fn read_with(frame: &[u8], l3: usize, v6: bool, cut_off: bool) -> Option<Headers> {
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
        tuple: Tuple {
            protocol,
            src: SocketAddr::new(src, 0),
            dst: SocketAddr::new(dst, 0),
        },
        fragment,
        is_quoted: cut_off,
        flags: 0,
        sequence: 0,
        acknowledgement: 0,
    };
    if !matches!(fragment, Fragment::Later(_)) && matches!(protocol, TCP | UDP | SCTP) {
        headers.tuple.src.set_port(half(frame, l4)?);
        headers.tuple.dst.set_port(half(frame, l4 + 2)?);
        match protocol {
            TCP if frame.len() >= l4 + 20 => {
                headers.flags = frame[l4 + 13];
                headers.sequence = word(frame, l4 + 4)?;
                headers.acknowledgement = word(frame, l4 + 8)?;
            }
            SCTP if frame.len() >= l4 + 16 => {
                headers.flags = match frame[l4 + 12] {
                    1 => SYN,
                    6 | 14 => RST,
                    _ => ACK,
                }
            }
            UDP if frame.len() >= l4 + 8 => {}
            _ if cut_off => {}
            _ => return None,
        }
    }
    Some(headers)
}

/// The offset of the transport's checksum.
pub(crate) fn checksum_offset(headers: &Headers) -> Option<usize> {
    match headers.tuple.protocol {
        TCP => Some(headers.l4 + 16),
        UDP => Some(headers.l4 + 6),
        _ => None,
    }
}

/// The ones' complement sum of bytes.
pub(crate) fn sum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0_u64;
    for part in parts {
        for pair in part.chunks(2) {
            sum += u64::from(pair[0]) << 8 | u64::from(pair.get(1).copied().unwrap_or(0));
        }
    }
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

/// A checksum after a change of what it covers, RFC 1624: HC' = ~(~HC + ~m + m').
fn updated(checksum: u16, old: u16, new: u16) -> u16 {
    !sum(&[
        &(!checksum).to_be_bytes(),
        &(!old).to_be_bytes(),
        &new.to_be_bytes(),
    ])
}

pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0x82f6_3b78 * (crc & 1))
        })
    })
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// The frame with other ends; every checksum that covers them follows, as right or wrong as it was.
pub(crate) fn with_ends(
    frame: &[u8],
    headers: &Headers,
    src: SocketAddr,
    dst: SocketAddr,
) -> Vec<u8> {
    let mut changed = frame.to_vec();
    let v6 = headers.is_v6();
    let addresses = [octets(src.ip()), octets(dst.ip())].concat();
    let at = headers.l3 + if v6 { 8 } else { 12 };
    let old_addresses = frame[at..at + addresses.len()].to_vec();
    changed[at..at + addresses.len()].copy_from_slice(&addresses);
    let (old, new) = (sum(&[&old_addresses]), sum(&[&addresses]));
    let put = |bytes: &mut Vec<u8>, at: usize, value: u16| {
        bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
    };
    let get = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    if !v6 {
        let at = headers.l3 + 10;
        put(&mut changed, at, updated(get(at), old, new));
    }
    let has_ports = matches!(headers.tuple.protocol, TCP | UDP | SCTP);
    if matches!(headers.fragment, Fragment::Later(_)) || !has_ports {
        return changed;
    }
    let ports = [src.port().to_be_bytes(), dst.port().to_be_bytes()].concat();
    let old_ports = &frame[headers.l4..headers.l4 + 4];
    changed[headers.l4..headers.l4 + 4].copy_from_slice(&ports);
    if let Some(at) = checksum_offset(headers) {
        // An ICMP error may quote less.
        if at + 2 > frame.len() {
            return changed;
        }
        let is_udp = headers.tuple.protocol == UDP;
        if !(is_udp && get(at) == 0) {
            let value = updated(get(at), old, new);
            let value = updated(value, sum(&[old_ports]), sum(&[&ports]));
            put(
                &mut changed,
                at,
                if is_udp && value == 0 { 0xffff } else { value },
            );
        }
    } else {
        let at = headers.l4 + 8;
        // An endpoint knows its packet by the tag; most quotes are too short for any CRC.
        if headers.is_quoted {
            return changed;
        }
        let field = u32::from_le_bytes(frame[at..at + 4].try_into().expect("four bytes"));
        if field != 0 {
            // A CRC is linear, so one that was wrong stays wrong by the same difference.
            let difference = sctp_crc(frame, headers) ^ sctp_crc(&changed, headers);
            changed[at..at + 4].copy_from_slice(&(field ^ difference).to_le_bytes());
        }
    }
    changed
}

fn sctp_crc(frame: &[u8], headers: &Headers) -> u32 {
    let mut bytes = frame[headers.l4..headers.end.min(frame.len())].to_vec();
    // What is cut off is the same before and after.
    bytes.resize(headers.end - headers.l4, 0);
    bytes[8..12].fill(0);
    crc32c(&bytes)
}

/// The changed frame of an ICMP message, its checksum as right or wrong as it was.
pub(crate) fn with_icmp_sum(before: &[u8], mut frame: Vec<u8>, headers: &Headers) -> Vec<u8> {
    let at = headers.l4 + 2;
    let covered = |frame: &[u8]| {
        let size = if headers.is_v6() { 32 } else { 0 };
        let addresses = &frame[headers.l3 + 8..headers.l3 + 8 + size];
        let mut message = frame[headers.l4..headers.end.min(frame.len())].to_vec();
        message[2..4].fill(0);
        sum(&[addresses, &message])
    };
    let field = u16::from_be_bytes([frame[at], frame[at + 1]]);
    let value = updated(field, covered(before), covered(&frame)).to_be_bytes();
    frame[at..at + 2].copy_from_slice(&value);
    frame
}

/// Whether two frames are equal; the two forms of zero in a ones' complement checksum are one.
pub(crate) fn same(expected: &[u8], seen: &[u8]) -> bool {
    if expected == seen {
        return true;
    }
    let (Some(headers), true) = (read(expected), expected.len() == seen.len()) else {
        return false;
    };
    let mut expected = expected.to_vec();
    let mut seen = seen.to_vec();
    let mut fields = Vec::new();
    if !headers.is_v6() {
        fields.push(headers.l3 + 10);
    }
    if headers.tuple.protocol == TCP && headers.fragment == Fragment::No {
        fields.push(headers.l4 + 16);
    }
    if matches!(headers.tuple.protocol, ICMP | ICMPV6) {
        fields.push(headers.l4 + 2);
    }
    for at in fields {
        for bytes in [&mut expected, &mut seen] {
            if bytes[at..at + 2] == [0xff, 0xff] {
                bytes[at..at + 2].fill(0);
            }
        }
    }
    expected == seen
}

/// What is wrong with a whole packet's checksums.
pub(crate) fn fault(frame: &[u8]) -> Option<&'static str> {
    let headers = read(frame)?;
    let v6 = headers.is_v6();
    if !v6 && sum(&[&frame[headers.l3..headers.l3 + header_length(frame, &headers)]]) != 0xffff {
        return Some("the IP header's checksum is wrong");
    }
    if headers.fragment != Fragment::No || headers.end > frame.len() {
        return None;
    }
    let body = &frame[headers.l4..headers.end];
    let (src, dst) = (
        octets(headers.tuple.src.ip()),
        octets(headers.tuple.dst.ip()),
    );
    let protocol = headers.tuple.protocol;
    let length = u32::try_from(body.len()).expect("short").to_be_bytes();
    let pseudo = [&src[..], &dst, &length, &[0, 0, 0, protocol]].concat();
    match protocol {
        UDP if body[6..8] == [0, 0] => None,
        TCP | UDP | ICMPV6 => (sum(&[&pseudo, body]) != 0xffff).then_some("the checksum is wrong"),
        ICMP => (sum(&[body]) != 0xffff).then_some("the ICMP checksum is wrong"),
        SCTP => {
            let field = u32::from_le_bytes(body[8..12].try_into().expect("four bytes"));
            (field != 0 && field != sctp_crc(frame, &headers)).then_some("the CRC is wrong")
        }
        _ => None,
    }
}

fn header_length(frame: &[u8], headers: &Headers) -> usize {
    4 * usize::from(frame[headers.l3] & 15)
}
