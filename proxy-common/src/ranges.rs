// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A few address ranges that together contain a growing set of addresses; part of
//! [`crate::Settings`]. The agent widens the ranges. The kernel programs check them before any port
//! bit or hash.

use crate::{Addr, Prefix};

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

impl<A: Addr> Ranges<A> {
    /// Contains no address.
    pub const NONE: Self = Self {
        prefixes: [Prefix::NONE; RANGES],
        count: 0,
    };

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
        self.prefixes = [Prefix::NONE; RANGES];
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
    use crate::V4;

    #[test]
    fn every_range_in_use_is_checked() {
        let prefix = |octets, bits: u32| Prefix {
            address: V4 { octets },
            mask: V4::from_word((u32::MAX << (32 - bits)).to_be()),
        };
        // One that begins at 0.0.0.0 counts as in use at any position.
        let all = [
            prefix([10, 96, 0, 0], 16),
            prefix([0, 0, 0, 0], 5),
            prefix([192, 168, 0, 0], 16),
            prefix([198, 51, 0, 0], 16),
        ];
        for count in 0..=RANGES {
            let ranges = Ranges::NONE.with(&all[..count]);
            assert_eq!(ranges.used(), &all[..count]);
            for (at, prefix) in all.iter().enumerate() {
                let [a, b, ..] = prefix.address.octets;
                let octets = [a, b, 200, 7];
                let contains = ranges.contains(V4 { octets });
                assert_eq!(contains, at < count, "{at} of {count}");
            }
            let octets = [203, 0, 113, 1];
            assert!(!ranges.contains(V4 { octets }));
        }
    }
}
