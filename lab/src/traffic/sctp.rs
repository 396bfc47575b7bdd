// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The first two packets of an SCTP handshake (RFC 9260), built and checked by hand, so that no
//! kernel with SCTP is needed. Used by `clients` and `servers` over raw sockets.

use std::net::SocketAddr;

/// SCTP's IP protocol number.
pub(super) const PROTOCOL: i32 = 132;

const INIT: u8 = 1;
const INIT_ACK: u8 = 2;
const ABORT: u8 = 6;
/// A parameter of an INIT ACK with any content. The lab's server puts its answer there.
const STATE_COOKIE: u16 = 7;
const COMMON_HEADER: usize = 12;
/// Length of INIT and INIT ACK: chunk header, tag, window, streams, first TSN.
const INIT_CHUNK: usize = 20;

/// An SCTP packet whose checksum is correct.
pub(super) struct Packet {
    pub(super) source_port: u16,
    pub(super) destination_port: u16,
    /// The tag that the receiver has chosen for packets to itself; 0 for an INIT.
    pub(super) verification_tag: u32,
    pub(super) chunk: Chunk,
}

/// The first chunk of an SCTP packet.
pub(super) enum Chunk {
    Init { tag: u32 },
    InitAck { cookie: Vec<u8> },
    Abort,
    Other,
}

/// Returns an INIT packet with `tag` as its initiate tag.
pub(super) fn init(source_port: u16, destination_port: u16, tag: u32) -> Vec<u8> {
    packet([source_port, destination_port], 0, INIT, tag, &[])
}

/// Returns the INIT ACK packet for an INIT with `tag`. Its cookie contains `text`.
pub(super) fn init_ack(source_port: u16, destination_port: u16, tag: u32, text: &[u8]) -> Vec<u8> {
    let parameter = (4 + text.len() as u16).to_be_bytes();
    let cookie = [&STATE_COOKIE.to_be_bytes()[..], &parameter, text].concat();
    let ports = [source_port, destination_port];
    packet(ports, tag, INIT_ACK, !tag | 1, &cookie)
}

fn packet(ports: [u16; 2], verification_tag: u32, chunk: u8, tag: u32, cookie: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(64);
    bytes.extend(ports.into_iter().flat_map(u16::to_be_bytes));
    bytes.extend(verification_tag.to_be_bytes());
    bytes.extend([0; 4]);
    bytes.extend([chunk, 0]);
    bytes.extend(((INIT_CHUNK + cookie.len()) as u16).to_be_bytes());
    bytes.extend(tag.to_be_bytes());
    bytes.extend(65_536u32.to_be_bytes());
    bytes.extend([0, 1, 0, 1]);
    bytes.extend(1u32.to_be_bytes());
    bytes.extend(cookie);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    let checksum = crc32c(&bytes);
    bytes[8..COMMON_HEADER].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Parses an SCTP packet behind its IP header. None if it is too short or its checksum is wrong.
pub(super) fn parse(bytes: &[u8]) -> Option<Packet> {
    let word = |at: usize| -> Option<[u8; 4]> { bytes.get(at..at + 4)?.try_into().ok() };
    let [a, b, c, d] = word(0)?;
    let found = u32::from_le_bytes(word(8)?);
    let mut blank = bytes.to_vec();
    blank[8..COMMON_HEADER].fill(0);
    if found != crc32c(&blank) {
        return None;
    }
    let [kind, _, high, low] = word(COMMON_HEADER)?;
    let length = usize::from(u16::from_be_bytes([high, low]));
    let chunk = match kind {
        INIT => Chunk::Init {
            tag: u32::from_be_bytes(word(COMMON_HEADER + 4)?),
        },
        INIT_ACK => Chunk::InitAck {
            cookie: bytes
                .get(COMMON_HEADER + INIT_CHUNK + 4..COMMON_HEADER + length)?
                .to_vec(),
        },
        ABORT => Chunk::Abort,
        _ => Chunk::Other,
    };
    Some(Packet {
        source_port: u16::from_be_bytes([a, b]),
        destination_port: u16::from_be_bytes([c, d]),
        verification_tag: u32::from_be_bytes(word(4)?),
        chunk,
    })
}

/// Returns the bytes behind the IP header of what a raw socket delivered; None if there are too
/// few. Only IPv4 sockets deliver the header. `local` is any address of the socket's family.
pub(super) fn payload(received: &[u8], local: SocketAddr) -> Option<&[u8]> {
    if local.is_ipv6() {
        return Some(received);
    }
    let header = usize::from(received.first()? & 0xf) * 4;
    received.get(header..)
}

/// Returns the checksum of SCTP (RFC 9260, appendix A).
pub fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0x82f6_3b78 * (crc & 1))
        })
    })
}
