// SPDX-License-Identifier: Apache-2.0 OR MIT
//! IP addresses, ports and protocol numbers in the form in which map keys have them. Code for both
//! IP families has the address type as a type parameter.

use core::hash::Hash;

use crate::select;

/// An IPv4 or IPv6 address; its octets are in the order of the wire.
pub trait Addr: Copy + Eq + Ord + Hash + core::fmt::Debug + Send + Sync + 'static {
    /// Address length in bits.
    const BITS: u32;
    /// The all-zero address; in a frontend's key it stands for every address that node ports are
    /// served on.
    const UNSPECIFIED: Self;
    /// The all-ones address: the mask of a single address.
    const ONES: Self;
    /// Padding that makes the size of a [`crate::Record`] of this family a multiple of eight bytes.
    type RecordPad: Copy + Eq + core::fmt::Debug + Default + Send + Sync;
    /// Returns the sum of products of the two addresses' words, keyed by `seed`. Check words are
    /// made of such sums ([`crate::check::fold_check`]).
    fn mix(self, other: Self, seed: u32) -> u64;
    /// Hashes the address and `word` into 64 bits, each of which depends on all input bits. The
    /// result is the same on every machine, whatever its byte order, so that all nodes choose the
    /// same backend ([`crate::select`]).
    fn scramble(self, word: u64) -> u64;
    /// Copies another address into this one, word by word. A plain assignment of 16 bytes becomes a
    /// call that copies byte by byte, if the compiler cannot exclude that the two overlap.
    fn assign(&mut self, from: &Self);
    /// Sets the address to the unspecified one, in place.
    #[inline(always)]
    fn clear(&mut self) {
        *self = Self::UNSPECIFIED;
    }
    /// Returns the bitwise AND of the address and `mask`.
    #[must_use]
    fn masked(self, mask: Self) -> Self;
    /// Whether routers forward packets from this address: it is not unspecified, loopback,
    /// link-local, multicast, broadcast, or an IPv4-mapped IPv6 address.
    fn may_be_forwarded(self) -> bool;
    /// Returns the address as an IPv6 address; an IPv4 address becomes IPv4-mapped.
    fn widened(self) -> V6;
}

/// An IPv4 address. Aligned so that the kernel programs load it as one word.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(C, align(4))]
pub struct V4 {
    pub octets: [u8; 4],
}

/// An IPv6 address. Aligned so that the kernel programs load it by words.
#[derive(Clone, Copy, PartialOrd, Ord, Default)]
#[repr(C, align(4))]
pub struct V6 {
    pub octets: [u8; 16],
}

impl V4 {
    #[inline(always)]
    pub const fn word(self) -> u32 {
        u32::from_ne_bytes(self.octets)
    }
    #[inline(always)]
    pub const fn from_word(word: u32) -> Self {
        Self {
            octets: word.to_ne_bytes(),
        }
    }
}

impl V6 {
    #[inline(always)]
    pub const fn words(self) -> [u32; 4] {
        // SAFETY: both are 16 plain bytes; every bit pattern is valid.
        unsafe { core::mem::transmute(self.octets) }
    }
    #[inline(always)]
    pub const fn from_words(words: [u32; 4]) -> Self {
        // SAFETY: as above.
        let octets = unsafe { core::mem::transmute::<[u32; 4], [u8; 16]>(words) };
        Self { octets }
    }
}

// Compared word by word: a derived comparison of 16 bytes becomes a call to memcmp, which BPF does
// not have.
impl PartialEq for V6 {
    #[inline(always)]
    fn eq(&self, other: &Self) -> bool {
        let (a, b) = (self.words(), other.words());
        (a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2]) | (a[3] ^ b[3]) == 0
    }
}
impl Eq for V6 {}
impl Hash for V6 {
    fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
        self.words().hash(state);
    }
}

impl Addr for V4 {
    type RecordPad = u32;
    const BITS: u32 = 32;
    const UNSPECIFIED: Self = Self { octets: [0; 4] };
    const ONES: Self = Self { octets: [0xff; 4] };
    #[inline(always)]
    fn mix(self, other: Self, seed: u32) -> u64 {
        crate::check::mix(self.word(), other.word(), seed)
    }
    #[inline(always)]
    fn scramble(self, word: u64) -> u64 {
        select::scramble(word ^ u32::from_be(self.word()) as u64)
    }
    #[inline(always)]
    fn assign(&mut self, from: &Self) {
        *self = *from;
    }
    #[inline(always)]
    fn masked(self, mask: Self) -> Self {
        Self::from_word(self.word() & mask.word())
    }
    #[inline(always)]
    fn may_be_forwarded(self) -> bool {
        const LINK_LOCAL: u32 = 0xa9fe;
        let word = u32::from_be(self.word());
        let first = word >> 24;
        // 224 and above: multicast, reserved, broadcast.
        first != 0 && first != 127 && first < 224 && word >> 16 != LINK_LOCAL
    }
    #[inline(always)]
    fn widened(self) -> V6 {
        V6::from_words([0, 0, 0xffff_u32.to_be(), self.word()])
    }
}

impl Addr for V6 {
    type RecordPad = [u32; 0];
    const BITS: u32 = 128;
    const UNSPECIFIED: Self = Self { octets: [0; 16] };
    const ONES: Self = Self { octets: [0xff; 16] };
    #[inline(always)]
    fn mix(self, other: Self, seed: u32) -> u64 {
        let (a, b) = (self.words(), other.words());
        crate::check::mix(a[0], b[0], seed)
            .wrapping_add(crate::check::mix(a[1], b[1], seed ^ 0x5bd1_e995))
            .wrapping_add(crate::check::mix(a[2], b[2], seed ^ 0x27d4_eb2f))
            .wrapping_add(crate::check::mix(a[3], b[3], seed ^ 0x1656_67b1))
    }
    #[inline(always)]
    fn scramble(self, word: u64) -> u64 {
        let [a, b, c, d] = self.words();
        let join = |high, low| (u32::from_be(high) as u64) << 32 | u32::from_be(low) as u64;
        select::scramble(select::scramble(word ^ join(a, b)) ^ join(c, d))
    }
    #[inline(always)]
    fn assign(&mut self, from: &Self) {
        let words = from.words();
        // SAFETY: both are 16 plain bytes, aligned to four.
        unsafe { core::ptr::from_mut(self).cast::<[u32; 4]>().write(words) };
    }
    #[inline(always)]
    fn clear(&mut self) {
        let words = core::ptr::from_mut(self).cast::<u32>();
        for n in 0..4 {
            // Volatile: otherwise the compiler replaces the loop by a call, which clears byte by
            // byte in the kernel programs.
            // SAFETY: as above.
            unsafe { words.add(n).write_volatile(0) };
        }
    }
    #[inline(always)]
    fn masked(self, mask: Self) -> Self {
        let (a, m) = (self.words(), mask.words());
        Self::from_words([a[0] & m[0], a[1] & m[1], a[2] & m[2], a[3] & m[3]])
    }
    #[inline(always)]
    fn may_be_forwarded(self) -> bool {
        const MULTICAST: u32 = 0xff00_0000;
        let [a, b, c, d] = self.words();
        let first = u32::from_be(a);
        if first & MULTICAST == MULTICAST || first & 0xffc0_0000 == 0xfe80_0000 {
            return false;
        }
        if a | b != 0 {
            return true;
        }
        let is_unspecified_or_loopback = c == 0 && u32::from_be(d) <= 1;
        !is_unspecified_or_loopback && u32::from_be(c) != 0xffff
    }
    #[inline(always)]
    fn widened(self) -> V6 {
        self
    }
}

/// A TCP, UDP or SCTP port in the byte order of the wire.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Port(pub u16);

impl Port {
    /// Port 0: no port; in a [`crate::FrontendKey`] every port that has no key of its own.
    pub const ANY: Self = Self(0);
    #[inline(always)]
    pub const fn is_any(self) -> bool {
        self.0 == 0
    }
    #[inline(always)]
    pub const fn from_host(port: u16) -> Self {
        Self(port.to_be())
    }
    #[inline(always)]
    pub const fn host(self) -> u16 {
        u16::from_be(self.0)
    }
}

impl core::fmt::Debug for Port {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}", self.host())
    }
}

/// An IP protocol number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Protocol(pub u8);

impl Protocol {
    /// Every protocol. Used only in the [`crate::FrontendKey`] that rejects a cluster IP's unserved
    /// ports.
    pub const ANY: Self = Self(0);
    pub const ICMP: Self = Self(1);
    pub const TCP: Self = Self(6);
    pub const UDP: Self = Self(17);
    pub const ICMPV6: Self = Self(58);
    pub const SCTP: Self = Self(132);

    /// The protocol's name as Kubernetes spells it; "?" for a protocol that no service port can
    /// have.
    pub const fn name(self) -> &'static str {
        match self {
            Self::TCP => "TCP",
            Self::UDP => "UDP",
            Self::SCTP => "SCTP",
            Self::ICMP => "ICMP",
            Self::ANY => "any",
            _ => "?",
        }
    }
}

/// An address range: all addresses whose bits under `mask` equal `address`. An unused entry has
/// address zero and a mask of all ones.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(C)]
pub struct Prefix<A> {
    pub address: A,
    pub mask: A,
}

impl<A: Addr> Prefix<A> {
    /// Contains only the unspecified address, which no served packet has as source or destination.
    pub const NONE: Self = Self {
        address: A::UNSPECIFIED,
        mask: A::ONES,
    };

    #[inline(always)]
    pub fn contains(&self, address: A) -> bool {
        address.masked(self.mask) == self.address
    }
}

#[cfg(any(test, feature = "user"))]
mod user {
    use super::{V4, V6};
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    macro_rules! conversions {
        ($family:ident, $std:ty) => {
            impl From<$std> for $family {
                fn from(address: $std) -> Self {
                    let octets = address.octets();
                    Self { octets }
                }
            }
            impl From<$family> for IpAddr {
                fn from(address: $family) -> Self {
                    Self::$family(address.octets.into())
                }
            }
            impl std::fmt::Debug for $family {
                fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    IpAddr::from(*self).fmt(f)
                }
            }
        };
    }
    conversions!(V4, Ipv4Addr);
    conversions!(V6, Ipv6Addr);
}

#[cfg(not(any(test, feature = "user")))]
mod kernel {
    use super::{V4, V6};

    impl core::fmt::Debug for V4 {
        fn fmt(&self, _: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
            Ok(())
        }
    }
    impl core::fmt::Debug for V6 {
        fn fmt(&self, _: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn routers_forward_packets_from_hosts_only() {
        let hosts = "10.40.1.9 126.0.0.1 128.0.0.1 223.255.255.255 169.253.0.1 fd00::9 2001::9 \
                     fec0::9 ::2 64:ff9b::10.40.1.9";
        let others = "0.0.0.0 0.1.2.3 127.0.0.1 169.254.1.1 224.0.0.5 240.0.0.1 255.255.255.255 \
                      :: ::1 fe80::9 febf::9 ff0e::9 ::ffff:10.40.1.9";
        for (addresses, expected) in [(hosts, true), (others, false)] {
            for text in addresses.split(' ') {
                let forwards = match text.parse().expect("an address") {
                    IpAddr::V4(address) => V4::from(address).may_be_forwarded(),
                    IpAddr::V6(address) => V6::from(address).may_be_forwarded(),
                };
                assert_eq!(forwards, expected, "{text}");
            }
        }
    }
}
