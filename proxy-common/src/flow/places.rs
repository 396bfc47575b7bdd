// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where the flow table keeps an entry. The table is an array of slots, in sets of [`WAYS`]. A key
//! has two sets, by a keyed hash, and its entry is in one way of either. So nothing is allocated,
//! and a full table evicts without a search: one of the key's own ways.
//!
//! Beside the slots there is an array of tags, one word for each way: whether the way is in use,
//! and part of the hash of its key. A look-up reads the tags of two sets, and then one slot.

use super::{FlowEntry, FlowKey};
use crate::{Addr, check::mix, select::scramble};

/// Number of slots in a set.
pub const WAYS: u32 = 8;

/// A key's first set is preferred while it has at least so many free ways: then most look-ups end
/// there. With fewer, sets would be full long before the table is.
pub const ROOMY: u32 = 5;

/// The tags of a set: an element of the maps `flow_tags_v4` and `flow_tags_v6`. A way's tag is 0
/// while the way is free.
pub type Tags = [u32; WAYS as usize];

/// Bit of a tag: the way has an entry.
pub const VALID: u32 = 1 << 31;
/// Bit of a tag: the way has been claimed, and its entry is being written.
pub const CLAIMED: u32 = 1 << 30;
/// Bits of a tag that come from the hash of the key. They are never all 0.
pub const HASHED: u32 = CLAIMED - 1;

/// One slot of the flow table: an element of the maps `flow_slots_v4` and `flow_slots_v6`. The
/// slots of set `n` are those from `n * WAYS` on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct FlowSlot<A> {
    pub key: FlowKey<A>,
    pub entry: FlowEntry<A>,
}

/// The two sets in which a key's entry may be, and its tag's bits [`HASHED`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Places {
    pub sets: [u32; 2],
    pub tag: u32,
}

/// Returns the number of sets of a table with space for so many entries: a power of two.
pub const fn sets(entries: u32) -> u32 {
    let sets = entries.div_ceil(WAYS).next_power_of_two();
    if sets < 2 { 2 } else { sets }
}

impl<A: Addr> FlowKey<A> {
    /// Returns where the entry of this key may be, in a table of `sets` sets (a power of two, at
    /// least 2). `secret` belongs to the table, so that no sender can fill chosen sets.
    #[inline(always)]
    pub fn places(&self, sets: u32, secret: u64) -> Places {
        let ports = (self.src_port.0 as u32) << 16 | self.dst_port.0 as u32;
        let ends = self.src.mix(self.dst, (secret >> 32) as u32);
        let rest = mix(ports, self.last_word(), secret as u32);
        let hash = scramble(ends.wrapping_add(rest) ^ secret);
        let first = hash as u32 & (sets - 1);
        let step = (hash >> 32) as u32 & (sets - 1);
        // Another set than the first, whatever the hash is.
        let second = first ^ (step | (step == 0) as u32);
        Places {
            sets: [first, second],
            tag: (hash >> 27) as u32 & HASHED | 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::{Port, Protocol, V4, V6};

    const SECRET: u64 = 0x0123_4567_89ab_cdef;

    fn key(n: u32) -> FlowKey<V4> {
        let end = |octets| V4 { octets };
        let port = Port::from_host;
        let client = end((0x0a00_0000 + n / 50_000).to_be_bytes());
        let own = 10_000 + (n % 50_000) as u16;
        FlowKey::new(
            client,
            port(own),
            end([10, 96, 0, 1]),
            port(80),
            Protocol::TCP,
        )
    }

    #[test]
    fn a_key_has_two_different_sets_and_a_tag_that_is_not_zero() {
        for n in 0..100_000 {
            let Places { sets, tag } = key(n).places(1024, SECRET);
            assert!(sets[0] != sets[1] && sets.iter().all(|set| *set < 1024));
            assert!(tag != 0 && tag & !HASHED == 0);
            assert_ne!(
                key(n).places(2, SECRET).sets[0],
                key(n).places(2, SECRET).sets[1]
            );
        }
    }

    #[test]
    fn every_part_of_a_key_and_the_secret_decide_the_places() {
        let of = |key: FlowKey<V4>, secret| key.places(1 << 20, secret);
        let (first, places) = (key(7), of(key(7), SECRET));
        let mut others = [first; 6];
        others[0].src.octets[3] ^= 1;
        others[1].dst.octets[0] ^= 1;
        others[2].src_port = Port::from_host(1);
        others[3].dst_port = Port::from_host(1);
        others[4].protocol = Protocol::UDP;
        others[5].interface = [1, 0, 0];
        for other in others {
            assert_ne!(of(other, SECRET), places, "{other:?}");
        }
        assert_ne!(of(first, SECRET + 1), places);
        let mut six = FlowKey::new(
            V6::UNSPECIFIED,
            Port(1),
            V6::UNSPECIFIED,
            Port(2),
            Protocol::TCP,
        );
        let before = six.places(1 << 20, SECRET);
        six.src.octets[2] = 1;
        assert_ne!(six.places(1 << 20, SECRET), before);
    }

    #[test]
    fn the_places_of_a_layout_never_change() {
        let of = key(7).places(1 << 20, SECRET);
        let expected = ([221_004, 413_461], 413_272_889);
        assert_eq!((of.sets, of.tag), expected, "raise LAYOUT_VERSION");
    }

    #[test]
    fn seven_tenths_of_a_table_are_filled_before_a_key_finds_both_of_its_sets_full() {
        let sets = 1 << 12;
        let mut filled: HashMap<u32, u32> = HashMap::new();
        let mut entered = 0;
        loop {
            let two = key(entered).places(sets, SECRET).sets;
            let fill = |set: &u32| filled.get(set).copied().unwrap_or(0);
            let [first, second] = two.map(|set| fill(&set));
            let emptier = two[usize::from(WAYS - first < ROOMY && second < first)];
            if fill(&emptier) == WAYS {
                break;
            }
            *filled.entry(emptier).or_default() += 1;
            entered += 1;
        }
        assert!(entered > sets * WAYS * 7 / 10, "{entered}");
    }
}
