// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keeps ids of removed elements that programs may still be reading. After a grace period, when no
//! program can be reading them, they go back to the free lists. Filled by `publish`, emptied by
//! `apply`.

use std::collections::{HashSet, VecDeque};

use proxy_common::{BackendId, Block, RecordId, ServiceId, V4, V6};

use super::{family::Stored, grace::Grace, maps::Maps};

/// The ids that one call of `Store::apply` has put out of use.
#[derive(Default)]
pub(super) struct Garbage {
    pub(super) records_v4: Vec<RecordId>,
    pub(super) records_v6: Vec<RecordId>,
    pub(super) backends_v4: Vec<BackendId>,
    pub(super) backends_v6: Vec<BackendId>,
    pub(super) blocks: Vec<Block>,
    pub(super) services: Vec<ServiceId>,
}

impl Garbage {
    fn is_empty(&self) -> bool {
        self.records_v4.is_empty()
            && self.records_v6.is_empty()
            && self.backends_v4.is_empty()
            && self.backends_v6.is_empty()
            && self.blocks.is_empty()
            && self.services.is_empty()
    }
}

/// The ids that several calls of `Store::apply` have put out of use. Each entry of `waiting` starts
/// with the number of the grace period that must pass first.
pub(super) struct Collector {
    grace: Grace,
    waiting: VecDeque<(u64, Garbage)>,
}

impl Collector {
    pub(super) fn new(grace: Grace) -> Self {
        Self {
            grace,
            waiting: VecDeque::new(),
        }
    }
    /// Adds ids that no element in the maps leads to any more.
    pub(super) fn add(&mut self, garbage: Garbage) {
        if !garbage.is_empty() {
            self.waiting.push_back((self.grace.request(), garbage));
        }
    }
    /// Frees the ids that no program can be reading any more.
    pub(super) fn collect(&mut self, maps: &mut Maps) {
        let completed = self.grace.completed();
        while let Some((_, garbage)) = self
            .waiting
            .pop_front_if(|(number, _)| *number <= completed)
        {
            free::<V4>(maps, garbage.records_v4, garbage.backends_v4);
            free::<V6>(maps, garbage.records_v6, garbage.backends_v6);
            for block in garbage.blocks {
                maps.blocks.release(block);
            }
            for id in &garbage.services {
                maps.service_ids.release(id.0);
            }
            if !garbage.services.is_empty() {
                // An element that could not be removed takes memory until the next agent starts.
                let services: HashSet<_> = garbage.services.into_iter().collect();
                let _ = maps.refused.forget(|id| services.contains(&id));
            }
        }
    }
    /// Waits until all waiting ids are free; false if there were none or the wait failed.
    pub(super) fn collect_all(&mut self, maps: &mut Maps) -> bool {
        let Some((number, _)) = self.waiting.back() else {
            return false;
        };
        let waited = self.grace.wait(*number);
        self.collect(maps);
        waited
    }
}

fn free<A: Stored>(maps: &mut Maps, records: Vec<RecordId>, backends: Vec<BackendId>) {
    let maps = A::maps_mut(maps);
    for id in records {
        maps.record_ids.release(id.0);
    }
    for id in backends {
        maps.disown_backend(id);
        maps.backend_ids.release(id.0);
    }
}
