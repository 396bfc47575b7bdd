// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The free list of the map `slots`: hands out runs of neighbouring slots from the shortest free
//! run that is long enough, and joins freed runs. Used by `reserve`, `garbage`, `adopt`.

use std::collections::{BTreeMap, BTreeSet};

use proxy_common::Block;

/// The free runs of slots: by first slot (with the length), and as pairs of length and first slot.
#[derive(Clone, Debug)]
pub(super) struct BlockAllocator {
    by_start: BTreeMap<u32, u32>,
    by_length: BTreeSet<(u32, u32)>,
    free: u32,
}

impl BlockAllocator {
    pub(super) fn new(capacity: u32) -> Self {
        let mut allocator = Self {
            by_start: BTreeMap::new(),
            by_length: BTreeSet::new(),
            free: capacity,
        };
        allocator.insert(0, capacity);
        allocator
    }
    fn insert(&mut self, start: u32, length: u32) {
        if length > 0 {
            self.by_start.insert(start, length);
            self.by_length.insert((length, start));
        }
    }
    fn remove(&mut self, start: u32, length: u32) {
        self.by_start.remove(&start);
        self.by_length.remove(&(length, start));
    }
    pub(super) fn free(&self) -> u32 {
        self.free
    }
    pub(super) fn longest(&self) -> u32 {
        self.by_length.last().map_or(0, |(length, _)| *length)
    }
    /// Takes `count` slots from the shortest free run that is long enough; `None` if there is no
    /// such run.
    pub(super) fn allocate(&mut self, count: u32) -> Option<Block> {
        if count == 0 {
            return Some(Block::EMPTY);
        }
        let (length, start) = *self.by_length.range((count, 0)..).next()?;
        self.remove(start, length);
        self.insert(start + count, length - count);
        self.free -= count;
        Some(Block::new(start, count))
    }
    /// Takes exactly these slots; returns false and takes none if any of them is taken or out of
    /// range.
    pub(super) fn claim(&mut self, block: Block) -> bool {
        let (first, count) = (block.first(), block.count());
        if count == 0 {
            return true;
        }
        let Some((&start, &length)) = self.by_start.range(..=first).next_back() else {
            return false;
        };
        let Some(end) = first.checked_add(count) else {
            return false;
        };
        if end > start + length {
            return false;
        }
        self.remove(start, length);
        self.insert(start, first - start);
        self.insert(end, start + length - end);
        self.free -= count;
        true
    }
    pub(super) fn release(&mut self, block: Block) {
        let (mut start, mut length) = (block.first(), block.count());
        if length == 0 {
            return;
        }
        self.free += length;
        if let Some((&before, &run)) = self.by_start.range(..start).next_back()
            && before + run == start
        {
            self.remove(before, run);
            start = before;
            length += run;
        }
        if let Some(&run) = self.by_start.get(&(start + length)) {
            self.remove(start + length, run);
            length += run;
        }
        self.insert(start, length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_shortest_free_run_of_slots_that_fits_is_allocated() {
        let mut slots = BlockAllocator::new(100);
        let blocks: Vec<_> = [10, 1, 4, 1]
            .map(|n| slots.allocate(n).expect("room"))
            .into();
        slots.release(blocks[0]);
        slots.release(blocks[2]);
        assert_eq!(slots.allocate(3), Some(Block::new(11, 3)));
        assert_eq!(slots.allocate(8), Some(Block::new(0, 8)));
    }

    #[test]
    fn a_claimed_run_of_slots_is_neither_allocated_nor_claimed_again() {
        let mut slots = BlockAllocator::new(10);
        assert!(slots.claim(Block::new(4, 3)));
        assert!(!slots.claim(Block::new(6, 2)));
        assert!(!slots.claim(Block::new(8, 3)));
        assert!(!slots.claim(Block::new(u32::MAX, 2)));
        assert_eq!(slots.allocate(4), Some(Block::new(0, 4)));
        assert_eq!((slots.free(), slots.longest()), (3, 3));
        assert_eq!(slots.allocate(4), None);
    }

    proptest! {
        #[test]
        fn allocated_runs_never_overlap_and_released_slots_are_free_again(operations: Vec<(bool, u8)>) {
            const CAPACITY: u32 = 500;
            let mut slots = BlockAllocator::new(CAPACITY);
            let mut held: Vec<Block> = Vec::new();
            for (allocate, n) in operations {
                if allocate {
                    let count = u32::from(n) + 1;
                    match slots.allocate(count) {
                        Some(block) => {
                            prop_assert_eq!(block.count(), count);
                            prop_assert!(block.first() + count <= CAPACITY);
                            for other in &held {
                                prop_assert!(block.first() >= other.first() + other.count()
                                    || other.first() >= block.first() + count);
                            }
                            held.push(block);
                        }
                        None => prop_assert!(slots.longest() < count),
                    }
                } else if !held.is_empty() {
                    slots.release(held.swap_remove(n as usize % held.len()));
                }
                let used: u32 = held.iter().map(|block| block.count()).sum();
                prop_assert_eq!(slots.free(), CAPACITY - used);
            }
            held.into_iter().for_each(|block| slots.release(block));
            prop_assert_eq!(slots.longest(), CAPACITY);
        }
    }
}
