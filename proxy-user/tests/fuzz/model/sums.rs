// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Changes source and destination of packets, and every checksum that covers them, by the
//! standards. Shares no code with the programs.

use std::net::{IpAddr, SocketAddr};

use super::wire::{Fragment, Headers, ICMP, ICMPV6, SCTP, TCP, UDP, read};

/// Returns the offset of a checksum of TCP or UDP in the frame; None for other protocols.
fn checksum_offset(headers: &Headers) -> Option<usize> {
    match headers.tuple.protocol {
        TCP => Some(headers.l4 + 16),
        UDP => Some(headers.l4 + 6),
        _ => None,
    }
}

/// Returns the one's complement sum of some bytes.
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

/// Returns a checksum after a covered half-word changed, RFC 1624: HC' = ~(~HC + ~m + m').
fn updated(checksum: u16, old: u16, new: u16) -> u16 {
    !sum(&[
        &(!checksum).to_be_bytes(),
        &(!old).to_be_bytes(),
        &new.to_be_bytes(),
    ])
}

/// Updates the checksum at the offset `checksum` after the half-word at the offset `at` has
/// changed; `before` is the old frame.
pub(crate) fn follow_half(frame: &mut [u8], checksum: usize, before: &[u8], at: usize) {
    let get = |bytes: &[u8], at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let value = updated(get(frame, checksum), get(before, at), get(frame, at));
    frame[checksum..checksum + 2].copy_from_slice(&value.to_be_bytes());
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

/// Returns the frame with another source and destination. Wrong checksums stay wrong.
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
        // The packet quoted in an ICMP error may end before its checksum.
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
        // Most quotes are too short for a CRC; an endpoint recognises them by the tag.
        if headers.is_quoted {
            return changed;
        }
        let field = u32::from_le_bytes(frame[at..at + 4].try_into().expect("four bytes"));
        if field != 0 {
            // A CRC is linear, so a wrong one is still wrong by the same difference.
            let difference = sctp_crc(frame, headers) ^ sctp_crc(&changed, headers);
            changed[at..at + 4].copy_from_slice(&(field ^ difference).to_le_bytes());
        }
    }
    changed
}

fn sctp_crc(frame: &[u8], headers: &Headers) -> u32 {
    let mut bytes = frame[headers.l4..headers.end.min(frame.len())].to_vec();
    // Bytes that were cut off are the same before and after the change.
    bytes.resize(headers.end - headers.l4, 0);
    bytes[8..12].fill(0);
    crc32c(&bytes)
}

/// Updates the checksum of a changed ICMP message; `before` is the frame before the change. A wrong
/// checksum stays wrong.
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

/// Returns true if two frames are equal; 0 and 0xffff are the same in a one's complement checksum.
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

/// Returns which checksum of a complete packet is wrong; None if all are correct.
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
