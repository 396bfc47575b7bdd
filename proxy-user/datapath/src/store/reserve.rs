// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Takes the ids and slots that a change needs from the free lists, and can give them back. Used by
//! `prepare`.

use std::{collections::HashSet, io};

use control::apply::Refusal;
use ipnet::IpNet;
use proxy_common::{BackendId, Block, FrontendKey, RecordId, ServiceId, maps as names};

use super::{
    change::{Batches, BlockChange, Quota, Want},
    ids::IdPool,
    maps::Maps,
    state::Stored,
};

/// The ids and slots that one service's change has taken so far.
pub(super) struct Reserved<'a> {
    want: Want,
    room: Quota,
    /// What services before this one will write.
    batches: &'a Batches,
    services: Vec<u32>,
    families: [FamilyReserved; 2],
    blocks: Vec<Block>,
}

#[derive(Default)]
struct FamilyReserved {
    records: Vec<u32>,
    backends: Vec<u32>,
    /// How many new elements the map of frontends gets; `sources` is the same for the map of source
    /// ranges.
    frontends: u32,
    sources: u32,
}

impl<'a> Reserved<'a> {
    pub(super) fn new(want: Want, room: Quota, batches: &'a Batches) -> Self {
        Self {
            want,
            room,
            batches,
            services: Vec::new(),
            families: Default::default(),
            blocks: Vec::new(),
        }
    }
    /// Puts all reserved ids and slots back into the free lists.
    pub(super) fn give_back(self, maps: &mut Maps) {
        let release = |ids: Vec<u32>, pool: &mut IdPool| {
            ids.into_iter().for_each(|id| pool.release(id));
        };
        release(self.services, &mut maps.service_ids);
        let [v4, v6] = self.families;
        release(v4.records, &mut maps.v4.record_ids);
        release(v6.records, &mut maps.v6.record_ids);
        release(v4.backends, &mut maps.v4.backend_ids);
        release(v6.backends, &mut maps.v6.backend_ids);
        self.blocks
            .into_iter()
            .for_each(|block| maps.blocks.release(block));
    }

    pub(super) fn service(&mut self, maps: &mut Maps) -> Result<ServiceId, Refusal> {
        let capacity = maps.names.capacity();
        let id = (maps.service_ids.free() > self.room.reserve(capacity))
            .then(|| maps.service_ids.allocate_after(maps.last_service_id))
            .flatten()
            .ok_or_else(|| full(names::NAMES, capacity, "frontends"))?;
        maps.last_service_id = id;
        self.services.push(id);
        Ok(ServiceId(id))
    }

    /// Reserves an element in the map of source ranges; does nothing if the range is of the other
    /// family.
    pub(super) fn source<A: Stored>(&mut self, maps: &Maps, range: &IpNet) -> Result<(), Refusal> {
        if range.addr().is_ipv4() != (A::VERSION == 4) {
            return Ok(());
        }
        let (maps, pending) = (A::maps(maps), A::batches(self.batches).sources.len());
        let capacity = maps.sources.capacity();
        let limit = capacity - self.room.reserve(capacity);
        let family = &mut self.families[A::AT];
        family.sources += 1;
        if maps.source_count + pending as u32 + family.sources > limit {
            return Err(full(A::SOURCE_RANGES, capacity, "sourceRanges"));
        }
        Ok(())
    }

    /// Reserves a record for each key, and an element in the map of frontends for each key that is
    /// new.
    pub(super) fn records<A: Stored>(
        &mut self,
        maps: &mut Maps,
        keys: impl Iterator<Item = FrontendKey<A>>,
    ) -> Result<Vec<RecordId>, Refusal> {
        let room = self.room;
        let family = &mut self.families[A::AT];
        let maps = A::maps_mut(maps);
        let mut records = Vec::new();
        let mut added = 0;
        for key in keys {
            let id = take(&mut maps.record_ids, room, maps.records.capacity())
                .ok_or_else(|| full(A::RECORDS, maps.records.capacity(), "records"))?;
            family.records.push(id);
            let mapped = maps.records.ensure(id, 1);
            mapped.map_err(unmapped(A::RECORDS))?;
            records.push(RecordId(id));
            added += u32::from(!maps.index.contains_key(&key));
        }
        family.frontends += added;
        let pending = A::batches(self.batches).new_frontends;
        let capacity = maps.frontends.capacity();
        let limit = capacity - room.reserve(capacity);
        if added > 0 && maps.index.len() as u32 + pending + family.frontends > limit {
            return Err(full(A::FRONTENDS, capacity, "frontends"));
        }
        Ok(records)
    }

    pub(super) fn backend<A: Stored>(&mut self, maps: &mut Maps) -> Result<BackendId, Refusal> {
        let maps = A::maps_mut(maps);
        let id = take(&mut maps.backend_ids, self.room, maps.backends.capacity())
            .ok_or_else(|| full(A::BACKENDS, maps.backends.capacity(), "backends"))?;
        self.families[A::AT].backends.push(id);
        let mapped = maps.backends.ensure(id, 1);
        mapped.map_err(unmapped(A::BACKENDS))?;
        Ok(BackendId(id))
    }

    /// Reserves a block in which backends have more slots than one: for weights, or a Maglev lookup
    /// table. If there is no free run for it and the change wants what fits, each backend gets one
    /// slot: `ids` has those of the backends.
    pub(super) fn table(
        &mut self,
        maps: &mut Maps,
        old: Block,
        slots: Vec<u32>,
        ids: Vec<u32>,
    ) -> Result<BlockChange, Refusal> {
        match self.new_block(maps, old, &slots)? {
            Some(change) => Ok(change),
            None if self.want == Want::WhatFits => self.block(maps, old, ids),
            None => Err(no_row(maps, slots.len())),
        }
    }

    /// Reserves a block for these slots, the ids of backends with one each, unless the old block
    /// has exactly these contents. If there is no free run for it, shrinks the old block to
    /// backends that are still wanted.
    pub(super) fn block(
        &mut self,
        maps: &mut Maps,
        old: Block,
        slots: Vec<u32>,
    ) -> Result<BlockChange, Refusal> {
        if let Some(change) = self.new_block(maps, old, &slots)? {
            return Ok(change);
        }
        let part = shrunk(maps, old, &slots);
        let is_all = matches!(&part, BlockChange::Shrink { block, .. } if has_each_once(maps, *block, &slots));
        if is_all || self.want == Want::WhatFits {
            return Ok(part);
        }
        Err(no_row(maps, slots.len()))
    }

    /// Keeps the old block if it has exactly these contents, else reserves a new one of this
    /// length; `None` if too few slots are free or no free run is long enough.
    fn new_block(
        &mut self,
        maps: &mut Maps,
        old: Block,
        slots: &[u32],
    ) -> Result<Option<BlockChange>, Refusal> {
        let mut pairs = slots.iter().zip(old.first()..);
        if old.count() as usize == slots.len() && pairs.all(|(id, at)| maps.slots.load(at) == *id) {
            return Ok(Some(BlockChange::Keep));
        }
        let count = slots.len() as u32;
        let reserve = self.room.reserve(maps.slots.capacity());
        let has_room = maps.blocks.free() >= count.saturating_add(reserve);
        let Some(block) = has_room.then(|| maps.blocks.allocate(count)).flatten() else {
            return Ok(None);
        };
        self.blocks.push(block);
        let mapped = maps.slots.ensure(block.first(), block.count());
        mapped.map_err(unmapped(names::SLOTS))?;
        let slots = slots.to_vec();
        Ok(Some(BlockChange::Replace { block, slots }))
    }
}

fn unmapped(map: &'static str) -> impl Fn(io::Error) -> Refusal {
    move |error| Refusal::Unmapped { map, error }
}

fn no_row(maps: &Maps, count: usize) -> Refusal {
    Refusal::Full {
        map: names::SLOTS,
        capacity: maps.slots.capacity(),
        key: "slots",
        detail: format!(
            "; {count} in a row are needed, {} are free, {} in the longest row",
            maps.blocks.free(),
            maps.blocks.longest()
        ),
    }
}

/// Returns whether the slots of a block are these ids, in any order.
fn has_each_once(maps: &Maps, block: Block, ids: &[u32]) -> bool {
    let found = (block.first()..).take(block.count() as usize);
    let found: HashSet<_> = found.map(|at| maps.slots.load(at)).collect();
    block.count() as usize == ids.len() && ids.iter().all(|id| found.contains(id))
}

/// Takes the lowest free id; `None` if then fewer ids than `room` demands would stay free.
fn take(ids: &mut IdPool, room: Quota, capacity: u32) -> Option<u32> {
    (ids.free() > room.reserve(capacity))
        .then(|| ids.allocate())
        .flatten()
}

fn full(map: &'static str, capacity: u32, key: &'static str) -> Refusal {
    Refusal::Full {
        map,
        capacity,
        key,
        detail: String::new(),
    }
}

/// Returns the change that shrinks a block to the longest part whose backends are all still wanted.
fn shrunk(maps: &Maps, old: Block, wanted: &[u32]) -> BlockChange {
    let wanted: HashSet<_> = wanted.iter().copied().collect();
    let end = old.first() + old.count();
    let mut best = Block::EMPTY;
    let mut first = old.first();
    for at in old.first()..=end {
        if at == end || !wanted.contains(&maps.slots.load(at)) {
            if at - first > best.count() {
                best = Block::new(first, at - first);
            }
            first = at + 1;
        }
    }
    if best == Block::EMPTY {
        return BlockChange::Shrink {
            block: best,
            rest: [old, Block::EMPTY],
        };
    }
    let after = best.first() + best.count();
    BlockChange::Shrink {
        block: best,
        rest: [
            Block::new(old.first(), best.first() - old.first()),
            Block::new(after, end - after),
        ],
    }
}
