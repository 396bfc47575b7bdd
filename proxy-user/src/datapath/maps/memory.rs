// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel memory that maps take. Used by `agent`, which lets maps grow, and by `cli` for the page of settings.

use super::shapes::{Shape, shapes};
use crate::datapath::{
    options::Capacities,
    sys::{MapKind, NO_PREALLOC},
};

/// A hash element's links, hash and lock state, in Linux 6.1 to 6.18.
const ELEMENT: u64 = 48;
const BUCKET: u64 = 16;
const TRIE_NODE: u64 = 64;

impl Shape {
    fn content(&self) -> u64 {
        let padded = |size: u32| u64::from(size.next_multiple_of(8));
        padded(self.key_size) + padded(self.value_size)
    }
    /// The bytes that the kernel takes when it makes the map.
    pub(crate) fn reserved(&self) -> u64 {
        let entries = u64::from(self.max_entries);
        match self.kind {
            MapKind::Array => u64::from(self.value_size.next_multiple_of(8)) * entries,
            MapKind::Hash | MapKind::LruHash => {
                let elements = match self.in_use() {
                    0 => (ELEMENT + self.content()) * entries,
                    _ => 0,
                };
                elements + BUCKET * entries.next_power_of_two()
            }
            // Taken entry by entry, or hardly anything.
            MapKind::LpmTrie | MapKind::PerCpuArray | MapKind::ArrayOfMaps => 0,
        }
    }
    /// The bytes that an entry takes when it is written, beside those reserved.
    pub(crate) fn in_use(&self) -> u64 {
        match self.kind {
            MapKind::LpmTrie => TRIE_NODE,
            MapKind::Hash if self.flags & NO_PREALLOC != 0 => ELEMENT + self.content(),
            _ => 0,
        }
    }
}

/// The bytes that full maps of these capacities take.
pub fn memory_of(capacities: &Capacities) -> u64 {
    let full = |shape: &Shape| shape.reserved() + shape.in_use() * u64::from(shape.max_entries);
    shapes(capacities).iter().map(full).sum()
}
