// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel says about a packet besides portolan's own programs: an interface has received
//! it, an interface sends it, or the kernel has freed it, with a reason and a place. The programs
//! of the object `portolan-follow` fill in a [`Sighting`]; [`Followed`] recognizes the packet.

use super::Tuple;
use crate::{Addr, Port, Protocol, V6};

/// Where the programs find members of the kernel's structs: bytes from the start of each. From the
/// running kernel's BTF.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(C)]
pub struct Offsets {
    /// Members of `struct sk_buff`.
    pub len: u32,
    pub mark: u32,
    pub head: u32,
    pub data: u32,
    pub network_header: u32,
    pub dev: u32,
    pub sk: u32,
    /// `ifindex` and `nd_net` of `struct net_device`.
    pub dev_index: u32,
    pub dev_net: u32,
    /// `skc_net` of `struct sock`.
    pub sock_net: u32,
    /// `ns.inum` of `struct net`.
    pub net_inode: u32,
}

/// What the programs report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Config {
    pub offsets: Offsets,
    /// 1 for `portolan trace --drops`: freed packets from or to any of the map `follow_ends`. 0:
    /// one packet, its repetitions and its answers, as [`Followed`] says.
    pub all_ends: u32,
}

/// An address and a port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(C)]
pub struct End {
    pub address: V6,
    pub port: Port,
    pub protocol: Protocol,
    pub _pad: u8,
}

impl End {
    pub const NONE: Self = Self::new(V6::UNSPECIFIED, Port::ANY, Protocol::ANY);

    #[inline(always)]
    pub const fn new(address: V6, port: Port, protocol: Protocol) -> Self {
        Self {
            address,
            port,
            protocol,
            _pad: 0,
        }
    }
}

impl Tuple {
    /// Returns the source.
    #[inline(always)]
    pub const fn src_end(&self) -> End {
        End::new(self.src, self.src_port, self.protocol)
    }
    /// Returns the destination.
    #[inline(always)]
    pub const fn dst_end(&self) -> End {
        End::new(self.dst, self.dst_port, self.protocol)
    }
}

/// How the kernel has seen a packet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Seen {
    Received = 0,
    Sent = 1,
    Freed = 2,
}

impl Seen {
    pub const ALL: [Self; 3] = [Self::Received, Self::Sent, Self::Freed];
}

/// Whose packet it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Direction {
    /// From the client.
    Request = 0,
    /// To the client.
    Answer = 1,
    /// An ICMP error about a packet of the client.
    Error = 2,
}

impl Direction {
    pub const ALL: [Self; 3] = [Self::Request, Self::Answer, Self::Error];
}

/// One packet at one place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Sighting {
    /// Nanoseconds of the monotonic clock.
    pub time: u64,
    /// Address of the code that freed the packet; 0 unless it was freed.
    pub location: u64,
    pub tuple: Tuple,
    /// Length in bytes.
    pub length: u32,
    pub mark: u32,
    /// Index of the interface in its network namespace; 0 if there is none.
    pub interface: u32,
    /// Inode number of the network namespace; 0 if it is not known.
    pub namespace: u32,
    /// Number in the running kernel's `enum skb_drop_reason`.
    pub reason: u32,
    /// Number of a [`Seen`].
    pub seen: u8,
    /// Number of a [`Direction`].
    pub direction: u8,
    /// Ethernet destination of a packet that is sent.
    pub receiver: [u8; 6],
    pub _pad: u32,
}

impl Sighting {
    // SAFETY: plain numbers, of which 0 is a valid value.
    pub const EMPTY: Self = unsafe { core::mem::zeroed() };
}

/// How many sources a followed packet may get on its way: the client's own, and masquerade
/// addresses.
pub const SOURCES: usize = 4;

/// How the followed packet is recognized: by its source, and where that was replaced, by what it
/// carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Followed {
    /// The first one is the client's. Until its packet is seen, the address may be unspecified and
    /// the port 0, for any.
    pub sources: [End; SOURCES],
    /// What tells the packet from others: [`token`]; 0 until it is seen.
    pub token: u64,
}

impl Followed {
    /// Returns whose packet this is; None for any other packet. `leads_there`: the destination is
    /// one of those that the packet may have.
    #[inline(always)]
    pub fn direction(&mut self, tuple: &Tuple, token: u64, leads_there: bool) -> Option<Direction> {
        if self.is_source(tuple.src, tuple.src_port, tuple.protocol) {
            if self.token == 0 {
                self.token = token;
            }
            return Some(Direction::Request);
        }
        if self.is_source(tuple.dst, tuple.dst_port, tuple.protocol) {
            return Some(Direction::Answer);
        }
        if tuple.kind & Tuple::QUOTES != 0
            && self.is_source(tuple.dst, tuple.dst_port, self.sources[0].protocol)
        {
            return Some(Direction::Error);
        }
        if token == 0 || tuple.protocol.0 != self.sources[0].protocol.0 {
            return None;
        }
        if self.token == token {
            self.add(End::new(tuple.src, tuple.src_port, tuple.protocol));
            return Some(Direction::Request);
        }
        if self.token == 0 && leads_there && self.may_begin(tuple) {
            self.token = token;
            self.sources[0].address = tuple.src;
            self.sources[0].port = tuple.src_port;
            return Some(Direction::Request);
        }
        None
    }

    #[inline(always)]
    fn is_source(&self, address: V6, port: Port, protocol: Protocol) -> bool {
        let is_it = |end: &End| {
            end.port.0 == port.0
                && end.protocol.0 == protocol.0
                && port.0 != 0
                && end.address == address
        };
        is_it(&self.sources[0])
            || is_it(&self.sources[1])
            || is_it(&self.sources[2])
            || is_it(&self.sources[3])
    }

    /// Whether the packet may be the client's first: what is known of the client fits.
    #[inline(always)]
    fn may_begin(&self, tuple: &Tuple) -> bool {
        let client = &self.sources[0];
        (client.port.0 == 0 || client.port.0 == tuple.src_port.0)
            && (client.address == V6::UNSPECIFIED || client.address == tuple.src)
    }

    #[inline(always)]
    fn add(&mut self, source: End) {
        if self.sources[1].port.0 == 0 {
            self.sources[1] = source;
        } else if self.sources[2].port.0 == 0 {
            self.sources[2] = source;
        } else if self.sources[3].port.0 == 0 {
            self.sources[3] = source;
        }
    }
}

/// Returns what tells a packet from others wherever its source is replaced: the sequence number of
/// a SYN, or the first eight bytes of a datagram's payload; 0 for any other packet. `transport` is
/// the start of the transport header.
#[inline(always)]
pub fn token(tuple: &Tuple, transport: &[u8; 16]) -> u64 {
    const SYN: u8 = 0x02;
    const ACK: u8 = 0x10;
    const SEQUENCE: u64 = 1 << 32;
    const HEADER_AND_TOKEN: u16 = 16;
    let [_, _, _, _, a, b, c, d, rest @ ..] = *transport;
    match tuple.protocol {
        Protocol::TCP if tuple.signals & (SYN | ACK) == SYN => {
            SEQUENCE | u32::from_be_bytes([a, b, c, d]) as u64
        }
        Protocol::UDP if u16::from_be_bytes([a, b]) >= HEADER_AND_TOKEN => u64::from_be_bytes(rest),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::V4;

    fn address(last: u8) -> V6 {
        V4::from(std::net::Ipv4Addr::new(10, 0, 0, last)).widened()
    }

    fn packet(from: (u8, u16), to: (u8, u16)) -> Tuple {
        Tuple {
            src: address(from.0),
            dst: address(to.0),
            src_port: Port::from_host(from.1),
            dst_port: Port::from_host(to.1),
            protocol: Protocol::TCP,
            family: 4,
            ..Tuple::NONE
        }
    }

    fn following(client: V6, port: u16) -> Followed {
        let mut sources = [End::NONE; SOURCES];
        sources[0] = End::new(client, Port::from_host(port), Protocol::TCP);
        Followed { sources, token: 0 }
    }

    #[test]
    fn a_packet_is_recognized_after_its_source_was_replaced() {
        let mut followed = following(address(1), 4000);
        let mut see = |packet: &Tuple, token| followed.direction(packet, token, false);
        let masqueraded = packet((9, 61000), (2, 80));
        assert_eq!(see(&masqueraded, 77), None, "not seen before");
        let request = packet((1, 4000), (5, 80));
        assert_eq!(see(&request, 77), Some(Direction::Request));
        assert_eq!(see(&packet((1, 4001), (5, 80)), 78), None, "another one");
        assert_eq!(see(&masqueraded, 77), Some(Direction::Request));
        let answer = packet((2, 80), (9, 61000));
        assert_eq!(see(&answer, 0), Some(Direction::Answer));
        let error = Tuple {
            kind: Tuple::QUOTES,
            protocol: Protocol::ICMP,
            ..answer
        };
        assert_eq!(see(&error, 0), Some(Direction::Error));
    }

    #[test]
    fn the_next_packet_of_a_client_is_the_first_that_leads_to_a_wanted_end() {
        let mut followed = following(address(1), 0);
        let request = packet((1, 4000), (5, 80));
        assert_eq!(followed.direction(&request, 77, false), None);
        let other = packet((3, 4000), (5, 80));
        assert_eq!(followed.direction(&other, 77, true), None, "another client");
        let seen = followed.direction(&request, 77, true);
        assert_eq!(seen, Some(Direction::Request));
        let later = packet((1, 4001), (5, 80));
        assert_eq!(followed.direction(&later, 78, true), None, "only one");
        let mut anybody = following(V6::UNSPECIFIED, 4000);
        let seen = anybody.direction(&other, 77, true);
        assert_eq!(seen, Some(Direction::Request));
    }

    #[test]
    fn tokens_are_of_syns_and_of_payloads() {
        let transport = [0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
        let with = |protocol, signals| Tuple {
            protocol,
            signals,
            ..Tuple::NONE
        };
        let of = |protocol, signals| token(&with(protocol, signals), &transport);
        assert_eq!(of(Protocol::TCP, 2), 0x1_0102_0304);
        assert_eq!(of(Protocol::TCP, 0x12), 0, "an answer");
        assert_eq!(of(Protocol::UDP, 0), 0x0506_0708_090a_0b0c);
        let mut short = transport;
        (short[4], short[5]) = (0, 15);
        assert_eq!(token(&with(Protocol::UDP, 0), &short), 0);
    }
}
