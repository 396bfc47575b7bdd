// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A few address ranges that together contain a growing set of addresses; part of
//! [`crate::Settings`]. The agent widens the ranges. The kernel programs check them before any port
//! bit or hash.

use crate::{Addr, Prefix, V4, V6};

/// Maximum number of address ranges of one kind (pods, cluster IPs, external IPs) and family.
pub const RANGES: usize = 4;

/// Up to [`RANGES`] address ranges of one family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Ranges<A> {
    /// The ranges: those in use come first; the others are [`Prefix::NONE`].
    prefixes: [Prefix<A>; RANGES],
    /// How many of the ranges are in use.
    count: u32,
}

impl Ranges<V4> {
    /// Contains no address.
    pub const NONE: Self = Self {
        prefixes: [Prefix::<V4>::NONE; RANGES],
        count: 0,
    };
}
impl Ranges<V6> {
    /// Contains no address.
    pub const NONE: Self = Self {
        prefixes: [Prefix::<V6>::NONE; RANGES],
        count: 0,
    };
}

#[cfg(test)]
impl Ranges<V4> {
    /// Returns a range that contains one address.
    pub const fn only(address: V4) -> Self {
        let mut ranges = Self::NONE;
        ranges.prefixes[0].address = address;
        ranges.count = 1;
        ranges
    }
}

impl<A: Addr> Ranges<A> {
    /// Whether one of the ranges contains the address.
    // Nearly every node has one range of cluster IPs. For such a node this is one comparison and a
    // check of the count.
    #[inline(always)]
    pub fn contains(&self, address: A) -> bool {
        let [first, second, third, fourth] = &self.prefixes;
        first.contains(address)
            || self.count > 1
                && (second.contains(address) || third.contains(address) || fourth.contains(address))
    }
    /// Returns the ranges in use.
    pub fn used(&self) -> &[Prefix<A>] {
        let count = (self.count as usize).min(RANGES);
        self.prefixes.split_at(count).0
    }
    /// Returns a value whose ranges in use are these: at most [`RANGES`], each truncated to its
    /// network.
    #[must_use]
    pub fn with(mut self, used: &[Prefix<A>]) -> Self {
        let none = Prefix {
            address: A::UNSPECIFIED,
            mask: A::ONES,
        };
        self.prefixes = [none; RANGES];
        for (to, from) in self.prefixes.iter_mut().zip(used) {
            *to = *from;
        }
        self.count = used.len().min(RANGES) as u32;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(address: [u8; 4], bits: u32) -> Prefix<V4> {
        let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
        Prefix {
            address: V4 { octets: address },
            mask: V4 {
                octets: mask.to_be_bytes(),
            },
        }
    }
    fn v4(octets: [u8; 4]) -> V4 {
        V4 { octets }
    }

    #[test]
    fn every_range_in_use_is_checked() {
        let networks = [
            [10, 96, 0, 0],
            [172, 30, 0, 0],
            [192, 168, 0, 0],
            [198, 51, 0, 0],
        ];
        let all: Vec<_> = networks.map(|network| prefix(network, 16)).into();
        for count in 0..=RANGES {
            let ranges = Ranges::<V4>::NONE.with(&all[..count]);
            assert_eq!(ranges.used(), &all[..count]);
            for (at, [a, b, _, _]) in networks.into_iter().enumerate() {
                assert_eq!(
                    ranges.contains(v4([a, b, 200, 7])),
                    at < count,
                    "{at} of {count}"
                );
            }
            assert!(!ranges.contains(v4([203, 0, 113, 1])));
        }
    }

    #[test]
    fn a_range_that_begins_at_0_0_0_0_counts_as_in_use_at_any_position() {
        let whole = [prefix([10, 0, 0, 0], 8), prefix([0, 0, 0, 0], 5)];
        let ranges = Ranges::<V4>::NONE.with(&whole);
        assert!(ranges.contains(v4([1, 2, 3, 4])) && ranges.contains(v4([10, 0, 0, 1])));
        assert!(!ranges.contains(v4([64, 0, 0, 1])));
    }
}
