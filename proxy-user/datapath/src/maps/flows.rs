// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A family's flow table, which the kernel programs change at the same time: see
//! `proxy_common::flow::places`. Used by `sweep`, `succession` and `read`.

use std::{
    io,
    mem::offset_of,
    path::Path,
    sync::atomic::{
        Ordering::{Acquire, SeqCst},
        fence,
    },
};

use linux::get_pinned;
use proxy_common::{
    FlowEntry, FlowKey,
    flow::places::{CLAIMED, FlowSlot, HASHED, Places, Tags, VALID, WAYS},
    maps,
};

use super::{
    arrays::{MappedArray, WINDOW},
    family::Family,
    open_table,
};

/// Number of sets whose slots make a window of the array of slots.
const SETS: u32 = WINDOW / WAYS;

/// A flow table. What is looked up or entered by its key stays mapped into memory.
pub struct FlowTable<A> {
    slots: MappedArray<FlowSlot<A>>,
    tags: MappedArray<Tags>,
    /// Decides together with a key in which sets its entry may be.
    secret: u64,
}

/// What has become of an entry that was to be added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Added {
    New,
    /// The table has an entry for the key, or a program is just entering one.
    Known,
    /// The key's two sets have no free slot.
    Full,
}

impl<A: Family> FlowTable<A> {
    /// Opens the table that is pinned in a generation's directory.
    pub fn open(home: &Path) -> io::Result<Self> {
        let pinned = |map| get_pinned(&home.join(map), false);
        let secret = open_table::<u32, u64>(home, maps::FLOW_SECRET)?.lookup(&0)?;
        Ok(Self {
            slots: pinned(A::FLOW_SLOTS).and_then(MappedArray::new)?,
            tags: pinned(A::FLOW_TAGS).and_then(MappedArray::new)?,
            secret: secret.unwrap_or_default(),
        })
    }
    /// Returns the number of slots.
    pub fn capacity(&self) -> u32 {
        self.slots.capacity()
    }
    /// Returns the secret of the table's hash.
    pub fn secret(&self) -> u64 {
        self.secret
    }

    /// Returns the entry of a key; `None` if there is none.
    pub fn lookup(&self, key: &FlowKey<A>) -> io::Result<Option<FlowEntry<A>>> {
        let found = self.locate(key)?.and_then(|(slot, _)| self.copy(slot));
        let found = found.filter(|found| found.key == *key);
        Ok(found.map(|found| found.entry))
    }
    /// Enters an entry unless its key has one. Evicts no other.
    pub fn add(&self, key: &FlowKey<A>, entry: &FlowEntry<A>) -> io::Result<Added> {
        let Places { mut sets, tag } = self.places(key)?;
        let used = |set: &u32| self.tags.ways(*set).filter(|(_, word)| *word != 0).count();
        sets.sort_by_key(used);
        let ways = || sets.into_iter().flat_map(|set| self.tags.ways(set));
        let same = || ways().filter(|(_, word)| *word & HASHED == tag).count();
        if same() > 0 {
            return Ok(Added::Known);
        }
        let claim = |(slot, _): &(u32, u32)| self.tags.exchange(*slot, 0, CLAIMED | tag);
        let Some((slot, _)) = ways().find(claim) else {
            return Ok(Added::Full);
        };
        // A program that enters the same key sees this claim, or this sees the program's.
        fence(SeqCst);
        if same() > 1 {
            self.tags.exchange(slot, CLAIMED | tag, 0);
            return Ok(Added::Known);
        }
        let (key, entry) = (*key, *entry);
        self.slots.store(slot, &FlowSlot { key, entry });
        self.tags.exchange(slot, CLAIMED | tag, VALID | tag);
        Ok(Added::New)
    }
    /// Replaces the entry of a key in place; false if there is none.
    pub fn update(&self, key: &FlowKey<A>, entry: &FlowEntry<A>) -> io::Result<bool> {
        let found = self.locate(key)?;
        if let Some((slot, _)) = found {
            let field = offset_of!(FlowSlot<A>, entry);
            self.slots.store_at(slot, field, entry);
        }
        Ok(found.is_some())
    }
    /// Removes the entry of a key; false if there is none.
    pub fn delete(&self, key: &FlowKey<A>) -> io::Result<bool> {
        let found = self.locate(key)?;
        Ok(found.is_some_and(|(slot, word)| self.tags.exchange(slot, word, 0)))
    }
    /// Makes a slot free whose tag is still `word`.
    pub fn free(&self, slot: u32, word: u32) -> io::Result<()> {
        self.tags.ensure(slot / WAYS, 1)?;
        self.tags.exchange(slot, word, 0);
        Ok(())
    }
    /// Makes all slots free.
    pub fn clear(&self) -> io::Result<()> {
        let sets = self.tags.capacity();
        self.tags.ensure(0, sets)?;
        (0..sets).for_each(|set| self.tags.store(set, &Tags::default()));
        Ok(())
    }

    /// Calls `visit` with every entry. One that is added or removed during the call may be missing.
    pub fn each(&self, mut visit: impl FnMut(FlowKey<A>, FlowEntry<A>)) -> io::Result<()> {
        (0..self.windows()).try_for_each(|window| self.each_of(window, &mut visit, |_, _| ()))
    }
    /// Returns into how many parts [`Self::each_of`] divides the table.
    pub fn windows(&self) -> u32 {
        self.slots.windows()
    }
    /// Does the same for a part of the table. It does not stay mapped. Calls `broken` with every
    /// slot, and its tag, that is being written, or that no look-up finds.
    pub fn each_of(
        &self,
        window: u32,
        mut visit: impl FnMut(FlowKey<A>, FlowEntry<A>),
        mut broken: impl FnMut(u32, u32),
    ) -> io::Result<()> {
        let part = Self {
            slots: self.slots.unmapped()?,
            tags: self.tags.unmapped()?,
            ..*self
        };
        let first = window * SETS;
        let count = SETS.min(self.tags.capacity() - first);
        part.tags.ensure(first, count)?;
        let ways = (first..first + count).flat_map(|set| part.tags.ways(set));
        let used: Vec<_> = ways.filter(|(_, word)| *word != 0).collect();
        if used.is_empty() {
            return Ok(());
        }
        part.ensure(first, count)?;
        for (slot, word) in used {
            let is_found = |FlowSlot { key, .. }: &FlowSlot<A>| {
                let Places { sets, tag } = key.places(part.tags.capacity(), part.secret);
                word == VALID | tag && sets.contains(&(slot / WAYS))
            };
            match part.copy(slot).filter(is_found) {
                Some(FlowSlot { key, entry }) => visit(key, entry),
                None => broken(slot, word),
            }
        }
        Ok(())
    }

    fn ensure(&self, first: u32, count: u32) -> io::Result<()> {
        self.tags.ensure(first, count)?;
        self.slots.ensure(first * WAYS, count * WAYS)
    }
    fn places(&self, key: &FlowKey<A>) -> io::Result<Places> {
        let places = key.places(self.tags.capacity(), self.secret);
        for set in places.sets {
            self.ensure(set, 1)?;
        }
        Ok(places)
    }
    /// Returns the slot of a key's entry, and its tag.
    fn locate(&self, key: &FlowKey<A>) -> io::Result<Option<(u32, u32)>> {
        let Places { sets, tag } = self.places(key)?;
        let mut ways = sets.into_iter().flat_map(|set| self.tags.ways(set));
        Ok(ways.find(|(slot, word)| *word == VALID | tag && self.slots.load(*slot).key == *key))
    }
    /// Copies a slot, once more if its entry is just being changed; `None` if it still is.
    fn copy(&self, slot: u32) -> Option<FlowSlot<A>> {
        let mut copies = (0..2).map(|_| self.slots.load(slot));
        copies.find(|copy| copy.entry.is_whole(&copy.key))
    }
}

impl MappedArray<Tags> {
    /// Returns the slots of a set, each with its tag.
    pub(crate) fn ways(&self, set: u32) -> impl Iterator<Item = (u32, u32)> + use<> {
        let tags = self.load(set);
        // The slots are read after their tags.
        fence(Acquire);
        (set * WAYS..).zip(tags)
    }
    /// Replaces a slot's tag by `to` if it is `from`; whether it was.
    pub(crate) fn exchange(&self, slot: u32, from: u32, to: u32) -> bool {
        let field = size_of::<u32>() * (slot % WAYS) as usize;
        self.exchange_u32(slot / WAYS, field, from, to) == from
    }
}
