// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Changes source and destination of packets, and every checksum that covers them, by the
//! standards. Shares no code with the programs.

use std::net::{IpAddr, SocketAddr};

use lab::traffic::crc32c;

use super::wire::{Fragment, Headers, ICMP, ICMPV6, SCTP, TCP, Tuple, UDP, read};

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

/// Updates the checksum at an offset after covered bytes changed, RFC 1624: HC' = ~(~HC + ~m + m').
fn update(frame: &mut [u8], at: usize, old: &[u8], new: &[u8]) {
    let inverted = [!frame[at], !frame[at + 1]];
    let old = (!sum(&[old])).to_be_bytes();
    let value = !sum(&[&inverted, &old, &sum(&[new]).to_be_bytes()]);
    frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Updates the checksum at the offset `checksum` after the half-word at the offset `at` has
/// changed; `before` is the old frame.
pub(crate) fn follow_half(frame: &mut [u8], checksum: usize, before: &[u8], at: usize) {
    let new = [frame[at], frame[at + 1]];
    update(frame, checksum, &before[at..at + 2], &new);
}

pub(crate) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// Returns the frame with another source and destination. Wrong checksums stay wrong.
pub(crate) fn with_ends(frame: &[u8], read: &Headers, src: SocketAddr, dst: SocketAddr) -> Vec<u8> {
    let mut changed = frame.to_vec();
    let at = read.l3 + if read.is_v6() { 8 } else { 12 };
    let mut new = [octets(src.ip()), octets(dst.ip())].concat();
    let mut old = frame[at..at + new.len()].to_vec();
    changed[at..at + new.len()].copy_from_slice(&new);
    if !read.is_v6() {
        update(&mut changed, read.l3 + 10, &old, &new);
    }
    if read.is_later() || !read.tuple.has_ports() {
        return changed;
    }
    let l4 = read.l4;
    let ports = [src.port().to_be_bytes(), dst.port().to_be_bytes()].concat();
    old.extend(&frame[l4..l4 + 4]);
    new.extend(&ports);
    changed[l4..l4 + 4].copy_from_slice(&ports);
    match read.tuple.protocol {
        // The packet quoted in an ICMP error may end before its checksum.
        TCP if frame.len() >= l4 + 18 => update(&mut changed, l4 + 16, &old, &new),
        UDP if frame.len() >= l4 + 8 && frame[l4 + 6..l4 + 8] != [0; 2] => {
            update(&mut changed, l4 + 6, &old, &new);
            if changed[l4 + 6..l4 + 8] == [0; 2] {
                changed[l4 + 6..l4 + 8].fill(0xff);
            }
        }
        // Most quotes are too short for a CRC; an endpoint recognises them by the tag.
        SCTP if !read.is_quoted && frame[l4 + 8..l4 + 12] != [0; 4] => {
            // A CRC is linear, so a wrong one is still wrong by the same difference.
            let difference = sctp_crc(frame, read) ^ sctp_crc(&changed, read);
            for (byte, difference) in changed[l4 + 8..].iter_mut().zip(difference.to_le_bytes()) {
                *byte ^= difference;
            }
        }
        _ => {}
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

/// Updates the checksum of an ICMP message; `before` is the old frame. A wrong one stays wrong.
pub(crate) fn with_icmp_sum(before: &[u8], mut frame: Vec<u8>, headers: &Headers) -> Vec<u8> {
    let at = headers.l4 + 2;
    let covered = |frame: &[u8]| {
        let size = if headers.is_v6() { 32 } else { 0 };
        let addresses = &frame[headers.l3 + 8..headers.l3 + 8 + size];
        let mut message = frame[headers.l4..headers.end.min(frame.len())].to_vec();
        message[2..4].fill(0);
        sum(&[addresses, &message])
    };
    let (old, new) = (covered(before).to_be_bytes(), covered(&frame).to_be_bytes());
    update(&mut frame, at, &old, &new);
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
    let (l3, l4, protocol) = (headers.l3, headers.l4, headers.tuple.protocol);
    let is_whole = headers.fragment == Fragment::No;
    let (mut expected, mut seen) = (expected.to_vec(), seen.to_vec());
    for (has_sum, at) in [
        (!headers.is_v6(), l3 + 10),
        (protocol == TCP && is_whole, l4 + 16),
        (matches!(protocol, ICMP | ICMPV6), l4 + 2),
    ] {
        for bytes in [&mut expected, &mut seen] {
            if has_sum && bytes[at..at + 2] == [0xff, 0xff] {
                bytes[at..at + 2].fill(0);
            }
        }
    }
    expected == seen
}

/// Returns the sum of a TCP, UDP or ICMP message with the header that its checksum covers besides.
pub(crate) fn transport_sum(protocol: u8, src: IpAddr, dst: IpAddr, message: &[u8]) -> u16 {
    if protocol == ICMP {
        return sum(&[message]);
    }
    let length = (message.len() as u32).to_be_bytes();
    let protocol = [0, 0, 0, protocol];
    sum(&[&octets(src), &octets(dst), &length, &protocol, message])
}

/// Returns which checksum of a complete packet is wrong; None if all are correct.
pub(crate) fn fault(frame: &[u8]) -> Option<&'static str> {
    let headers = read(frame)?;
    let header = 4 * usize::from(frame[headers.l3] & 15);
    if !headers.is_v6() && sum(&[&frame[headers.l3..headers.l3 + header]]) != 0xffff {
        return Some("the IP header's checksum is wrong");
    }
    if headers.fragment != Fragment::No || headers.end > frame.len() {
        return None;
    }
    let body = &frame[headers.l4..headers.end];
    let Tuple { protocol, src, dst } = headers.tuple;
    match protocol {
        UDP if body[6..8] == [0, 0] => None,
        TCP | UDP | ICMP | ICMPV6 => (transport_sum(protocol, src.ip(), dst.ip(), body) != 0xffff)
            .then_some("the checksum is wrong"),
        SCTP => {
            let field = u32::from_le_bytes(body[8..12].try_into().expect("four bytes"));
            (field != 0 && field != sctp_crc(frame, &headers)).then_some("the CRC is wrong")
        }
        _ => None,
    }
}
