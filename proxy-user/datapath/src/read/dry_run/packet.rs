// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A packet of a dry run, with only the bytes that the programs read.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use proxy_common::{Protocol, checksum};

use super::Asked;

/// A packet: protocol, addresses with ports, and its role in the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet {
    pub protocol: Protocol,
    pub src: SocketAddr,
    pub dst: SocketAddr,
    pub kind: Kind,
}

/// The role of a packet in its connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// SYN, INIT, or any datagram.
    First,
    /// The reply to the first packet.
    Answer,
    /// A packet in the middle of a connection; SCTP sends it as DATA.
    Later,
    /// A reset.
    Reset,
    /// An ICMP error; the ports are 0.
    Error,
}

/// The client's source port if the caller names none.
const ANY_PORT: u16 = 49_152;

const ETHERNET: usize = 14;
const TCP: usize = 20;
const UDP: usize = 8;
const SCTP: usize = 32;
const TTL: u8 = 64;

impl Packet {
    /// Returns the client's first packet of a connection.
    pub fn first(asked: &Asked) -> Self {
        let port = match asked.client_port {
            0 => ANY_PORT,
            port => port,
        };
        Self {
            protocol: asked.protocol,
            src: SocketAddr::new(asked.client, port),
            dst: asked.to,
            kind: Kind::First,
        }
    }

    /// Returns the packet that the receiver would send back.
    #[must_use]
    pub const fn answer(self) -> Self {
        Self {
            protocol: self.protocol,
            src: self.dst,
            dst: self.src,
            kind: match self.kind {
                Kind::First => Kind::Answer,
                kind => kind,
            },
        }
    }

    /// Returns the packet as bytes. `mac` is the destination in its Ethernet header; `None` stands
    /// for the address 0, for an interface without one.
    pub fn encode(&self, mac: Option<[u8; 6]>) -> Vec<u8> {
        let payload = self.transport();
        let mut bytes = mac.unwrap_or_default().to_vec();
        bytes.extend([0x02, 0, 0, 0, 0, 1]);
        match (self.src.ip(), self.dst.ip()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                bytes.extend([0x08, 0x00]);
                bytes.extend(v4_header(src, dst, self.protocol, payload.len()));
            }
            (src, dst) => {
                bytes.extend([0x86, 0xdd]);
                bytes.extend([0x60, 0, 0, 0]);
                bytes.extend((payload.len() as u16).to_be_bytes());
                bytes.extend([self.protocol.0, TTL]);
                bytes.extend(v6_octets(src));
                bytes.extend(v6_octets(dst));
            }
        }
        bytes.extend(payload);
        bytes
    }

    fn transport(&self) -> Vec<u8> {
        let mut bytes = self.src.port().to_be_bytes().to_vec();
        bytes.extend(self.dst.port().to_be_bytes());
        match self.protocol {
            Protocol::TCP => {
                // Sequence and acknowledgement; header length, flags.
                let flags = match self.kind {
                    Kind::First => 0x02,
                    Kind::Answer => 0x12,
                    Kind::Reset => 0x04,
                    Kind::Later | Kind::Error => 0x10,
                };
                bytes.extend([0, 0, 0x10, 0, 0, 0, 0x20, 0, 5 << 4, flags, 0xff, 0xff]);
                bytes.resize(TCP, 0);
            }
            Protocol::SCTP => {
                // Tag, checksum; INIT, INIT ACK or DATA.
                bytes.resize(12, 0);
                bytes.push(match self.kind {
                    Kind::First => 1,
                    Kind::Answer => 2,
                    _ => 0,
                });
                bytes.extend([0, 0, 20]);
                bytes.resize(SCTP, 1);
            }
            _ => {
                // Length, and no checksum.
                bytes.extend([0, UDP as u8, 0, 0]);
            }
        }
        bytes
    }

    /// Parses the bytes that a program has left; `None` if they are not a packet as
    /// [`Self::encode`] makes them or a program could.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (ethernet, rest) = bytes.split_at_checked(ETHERNET)?;
        let (protocol, src, dst, transport) = match ethernet.get(12..14)? {
            [0x08, 0x00] => {
                let length = usize::from(rest.first()? & 0xf) * 4;
                let v4 = |at: usize| {
                    let octets: [u8; 4] = rest.get(at..at + 4)?.try_into().ok()?;
                    Some(IpAddr::V4(Ipv4Addr::from(octets)))
                };
                (*rest.get(9)?, v4(12)?, v4(16)?, rest.get(length..)?)
            }
            [0x86, 0xdd] => {
                let v6 = |at: usize| {
                    let octets: [u8; 16] = rest.get(at..at + 16)?.try_into().ok()?;
                    Some(IpAddr::V6(Ipv6Addr::from(octets)))
                };
                (*rest.get(6)?, v6(8)?, v6(24)?, rest.get(40..)?)
            }
            _ => return None,
        };
        let protocol = Protocol(protocol);
        let port = |at: usize| {
            let bytes = transport.get(at..at + 2)?.try_into().ok()?;
            Some(u16::from_be_bytes(bytes))
        };
        let (ports, kind) = match protocol {
            Protocol::TCP => {
                let flags = *transport.get(13)?;
                let kind = match flags & 0x16 {
                    0x02 => Kind::First,
                    0x12 => Kind::Answer,
                    other if other & 0x04 != 0 => Kind::Reset,
                    _ => Kind::Later,
                };
                ((port(0)?, port(2)?), kind)
            }
            Protocol::SCTP => {
                let kind = match *transport.get(12)? {
                    1 => Kind::First,
                    2 => Kind::Answer,
                    _ => Kind::Later,
                };
                ((port(0)?, port(2)?), kind)
            }
            Protocol::UDP => ((port(0)?, port(2)?), Kind::First),
            _ => ((0, 0), Kind::Error),
        };
        Some(Self {
            protocol,
            src: SocketAddr::new(src, ports.0),
            dst: SocketAddr::new(dst, ports.1),
            kind,
        })
    }
}

fn v4_header(src: Ipv4Addr, dst: Ipv4Addr, protocol: Protocol, payload: usize) -> [u8; 20] {
    let mut header = [0; 20];
    header[0] = 0x45;
    header[2..4].copy_from_slice(&(20 + payload as u16).to_be_bytes());
    (header[8], header[9]) = (TTL, protocol.0);
    header[12..16].copy_from_slice(&src.octets());
    header[16..20].copy_from_slice(&dst.octets());
    let words = header.chunks_exact(2);
    let sum = words.fold(0, |sum, word| {
        sum + u64::from(u16::from_ne_bytes([word[0], word[1]]))
    });
    let checksum = !checksum::fold(sum);
    header[10..12].copy_from_slice(&checksum.to_ne_bytes());
    header
}

fn v6_octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

#[cfg(test)]
mod tests {
    use etherparse::SlicedPacket;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("10.0.0.1:7", "10.96.0.1:80", Protocol::TCP)]
    #[case("10.0.0.1:7", "10.96.0.1:80", Protocol::UDP)]
    #[case("[fd00::1]:7", "[fd00::2]:80", Protocol::TCP)]
    #[case("[fd00::1]:7", "[fd00::2]:80", Protocol::SCTP)]
    fn an_encoded_packet_is_decoded_unchanged(
        #[case] src: SocketAddr,
        #[case] dst: SocketAddr,
        #[case] protocol: Protocol,
    ) {
        let kinds: &[Kind] = match protocol {
            Protocol::UDP => &[Kind::First],
            _ => &[Kind::First, Kind::Answer, Kind::Later],
        };
        for kind in kinds {
            let packet = Packet {
                protocol,
                src,
                dst,
                kind: *kind,
            };
            let bytes = packet.encode(None);
            SlicedPacket::from_ethernet(&bytes).expect("a packet");
            assert_eq!(Packet::decode(&bytes), Some(packet));
            for length in 0..bytes.len() {
                // Truncated bytes must not panic.
                _ = Packet::decode(&bytes[..length]);
            }
        }
    }
}
