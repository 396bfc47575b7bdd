// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Free lists: of the ids of map elements, of which the lowest comes first, so that the used part
//! of an array stays small; and of the map `slots`, which hands out runs of neighbouring slots from
//! the shortest free run that is long enough, and joins freed runs. Used by `reserve`, `garbage`,
//! `adopt`.

use std::collections::{BTreeMap, BTreeSet};

use proxy_common::Block;

/// The ids from 1 to `capacity` - 1. A set bit in `used` means that the id is taken.
#[derive(Clone, Debug)]
pub(super) struct IdPool {
    used: Vec<u64>,
    capacity: u32,
    free: u32,
    /// The words of `used` before this index have no free id.
    hint: usize,
}

impl IdPool {
    /// Returns a pool with all ids free, except 0, which means "none" everywhere.
    pub(super) fn new(capacity: u32) -> Self {
        let mut pool = Self {
            used: vec![0; capacity.div_ceil(64) as usize],
            capacity,
            free: capacity,
            hint: 0,
        };
        pool.claim(0);
        pool
    }
    pub(super) fn free(&self) -> u32 {
        self.free
    }
    /// Takes the lowest free id; `None` if all are taken.
    pub(super) fn allocate(&mut self) -> Option<u32> {
        let hint = self.hint.min(self.used.len());
        for (word, bits) in self.used.iter_mut().enumerate().skip(hint) {
            let id = word as u32 * 64 + bits.trailing_ones();
            if *bits != u64::MAX && id < self.capacity {
                *bits |= 1 << (id % 64);
                self.hint = word;
                self.free -= 1;
                return Some(id);
            }
        }
        self.hint = self.used.len();
        None
    }
    /// Takes the next free id after `last`, and continues at 1 after the highest one, so that an id
    /// is reused as late as possible. `None` if all are taken.
    pub(super) fn allocate_after(&mut self, last: u32) -> Option<u32> {
        let words = self.used.len() as u32;
        let first = last.saturating_add(1);
        // The first word is searched twice: from `first` on, and completely at the end.
        for step in 0..=words {
            let word = (first / 64).wrapping_add(step) % words.max(1);
            let skipped = if step == 0 {
                (1 << (first % 64)) - 1
            } else {
                0
            };
            let bits = self.used.get_mut(word as usize)?;
            let id = word * 64 + (*bits | skipped).trailing_ones();
            if (*bits | skipped) != u64::MAX && id < self.capacity {
                *bits |= 1 << (id % 64);
                self.free -= 1;
                return Some(id);
            }
        }
        None
    }
    /// Takes exactly this id; false if it is out of range or already taken.
    pub(super) fn claim(&mut self, id: u32) -> bool {
        let Some(bits) = self.used.get_mut(id as usize / 64) else {
            return false;
        };
        let bit = 1 << (id % 64);
        if id >= self.capacity || *bits & bit != 0 {
            return false;
        }
        *bits |= bit;
        self.free -= 1;
        true
    }
    pub(super) fn release(&mut self, id: u32) {
        if let Some(bits) = self.used.get_mut(id as usize / 64)
            && *bits & 1 << (id % 64) != 0
        {
            *bits &= !(1 << (id % 64));
            self.free += 1;
            self.hint = self.hint.min(id as usize / 64);
        }
    }
}

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
    use std::collections::BTreeSet;

    #[test]
    fn allocate_after_returns_every_other_id_before_it_repeats_one() {
        let mut pool = IdPool::new(150);
        let mut last = 0;
        for round in 0..3 {
            for expected in 1..150 {
                last = pool.allocate_after(last).expect("one is free");
                assert_eq!(last, expected, "round {round}");
                pool.release(last);
            }
        }
        for _ in 1..150 {
            assert!(pool.allocate_after(70).is_some());
        }
        assert_eq!(pool.allocate_after(70), None);
    }

    #[test]
    fn an_id_beyond_the_capacity_cannot_be_claimed() {
        let mut pool = IdPool::new(100);
        assert!(!pool.claim(100));
        assert!(!pool.claim(u32::MAX));
        assert!(!pool.claim(0));
        assert!(pool.claim(99) && !pool.claim(99));
    }

    proptest! {
        #[test]
        fn the_lowest_free_id_but_zero_is_allocated_first_and_none_if_all_are_taken(
            capacity in prop_oneof![3..9_u32, Just(130)], operations: Vec<(bool, u8)>,
        ) {
            let mut pool = IdPool::new(capacity);
            let mut free: BTreeSet<u32> = (1..capacity).collect();
            for (allocate, id) in operations {
                if allocate {
                    prop_assert_eq!(pool.allocate(), free.pop_first());
                } else {
                    let id = u32::from(id).clamp(1, capacity - 1);
                    pool.release(id);
                    free.insert(id);
                }
                prop_assert_eq!(pool.free() as usize, free.len());
            }
        }
    }

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
