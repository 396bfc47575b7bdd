// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel memory that maps take, and the sizes that suit a machine. Used by `agent`, which lets
//! maps grow, and by `cli` for the settings page.

use linux::{MapKind, NO_PREALLOC, possible_cpus};

use super::shapes::{Shape, shapes};
use crate::options::Capacities;

/// Bytes that an element of a hash map takes in addition to key and value, in Linux 6.1 to 6.18:
/// its links, hash and lock state.
const ELEMENT: u64 = 48;
const BUCKET: u64 = 16;
const POINTER: u64 = 8;
const TRIE_NODE: u64 = 64;

fn padded(size: u32) -> u64 {
    size.next_multiple_of(8).into()
}

impl Shape {
    fn content(&self) -> u64 {
        padded(self.key_size) + padded(self.value_size)
    }
    /// Returns the bytes that the kernel reserves when it creates the map.
    pub fn reserved(&self) -> u64 {
        let entries = u64::from(self.max_entries);
        match self.kind {
            MapKind::Array => padded(self.value_size) * entries,
            MapKind::Hash | MapKind::LruHash => {
                let elements = match self.in_use() {
                    0 => (ELEMENT + self.content()) * entries,
                    _ => 0,
                };
                elements + BUCKET * entries.next_power_of_two()
            }
            MapKind::PerCpuArray => {
                padded(self.value_size) * possible_cpus().unwrap_or(1) as u64 * entries
            }
            MapKind::PerCpuHash => {
                let key = padded(self.key_size);
                // The values, one word for each processor, are small.
                (ELEMENT + key + POINTER) * entries + BUCKET * entries.next_power_of_two()
            }
            // A trie takes memory entry by entry, and an array of maps hardly any.
            MapKind::LpmTrie | MapKind::ArrayOfMaps => 0,
        }
    }
    /// Returns the bytes that each element takes when it is written, in addition to
    /// [`Self::reserved`].
    pub fn in_use(&self) -> u64 {
        match self.kind {
            MapKind::LpmTrie => TRIE_NODE,
            MapKind::Hash if self.flags & NO_PREALLOC != 0 => ELEMENT + self.content(),
            _ => 0,
        }
    }
    /// True if the map has a value of each element for every processor.
    pub fn is_per_processor(&self) -> bool {
        self.kind == MapKind::PerCpuArray
    }
}

/// The maps may take 1/16 of the machine's memory at first; they may grow beyond that later.
const SHARE: u64 = 16;
/// How often the sizes may be halved to fit into that memory.
const HALVINGS: u32 = 5;

/// Returns the initial map sizes for a machine with so many bytes of memory.
pub fn sizes_for(memory: u64) -> Capacities {
    let wanted = Capacities::default();
    let halved = |times: u32| wanted.zip(wanted, |size, _| size >> times);
    let fits = |sizes: &Capacities| memory_of(sizes) <= memory / SHARE;
    let mut sizes = (0..HALVINGS).map(halved);
    sizes.find(fits).unwrap_or_else(|| halved(HALVINGS))
}

/// Returns the bytes that full maps of these capacities take.
pub fn memory_of(capacities: &Capacities) -> u64 {
    let full = |shape: &Shape| shape.reserved() + shape.in_use() * u64::from(shape.max_entries);
    shapes(capacities).iter().map(full).sum()
}

/// Returns the bytes that the flow tables of both families take of these.
pub fn flow_memory_of(capacities: &Capacities) -> u64 {
    let shapes = shapes(capacities).into_iter();
    let flows = shapes.filter(|shape| shape.name.starts_with("flow_"));
    flows.map(|shape| shape.reserved()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn initial_map_sizes_follow_from_memory() {
        let most = Capacities::default();
        assert_eq!(sizes_for(32 * GIB), most);
        for memory in [GIB / 2, GIB] {
            let sizes = sizes_for(memory);
            assert!(sizes.flows < most.flows);
            assert!(memory_of(&sizes) <= memory / SHARE, "{sizes:?}");
            assert!(2 * memory_of(&sizes) > memory / 4 / SHARE, "{sizes:?}");
        }
        // The maps can still grow if they must.
        assert_eq!(sizes_for(GIB / 16).flows, most.flows >> HALVINGS);
    }

    #[test]
    fn room_for_250_000_masqueraded_flows_of_one_family_takes_120_mib_more_at_most() {
        let (first, flows) = (Capacities::default(), 1 << 20);
        assert!(3 * 250_000 < flows / 4 * 3, "it does not grow further");
        let grown = Capacities { flows, ..first };
        assert!(memory_of(&grown) - memory_of(&first) <= 120 << 20);
    }
}
