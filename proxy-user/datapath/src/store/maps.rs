// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The maps that plans are written into, and the free lists of their ids. Also changes single
//! fields of elements that programs may be reading. Used by all of `store`.

use std::{
    collections::{HashMap, HashSet},
    io,
    mem::offset_of,
};

use control::{apply::Fill, plan::BackendPlan};
use linux::LpmKey;
use proxy_common::{
    Backend, BackendId, EndpointSet, FrontendKey, Record, RecordId, V4, V6, maps as names,
    service::ServiceName,
};

use super::{
    delta::{Current, CurrentFrontend},
    ids::{BlockAllocator, IdPool},
    state::FamilyState,
};
use crate::{
    error::DatapathError,
    maps::{
        PinnedMaps, PortFilter,
        arrays::MappedArray,
        counted::{RefusedMap, TrafficMap},
        family::Family,
        tables::Table,
    },
    node::NewAddresses,
};

/// The maps of one address family, and the free lists of their ids.
pub(crate) struct FamilyMaps<A: Family> {
    pub(super) frontends: Table<FrontendKey<A>, u32>,
    pub(super) records: MappedArray<Record<A>>,
    pub(super) backends: MappedArray<Backend<A>>,
    pub(super) sources: Table<LpmKey<A>, u32>,
    pub(super) traffic: TrafficMap,
    pub(super) record_ids: IdPool,
    pub(super) backend_ids: IdPool,
    /// A copy of the map of frontends: the record that each key leads to.
    pub(super) index: HashMap<FrontendKey<A>, RecordId>,
    /// The number of elements of `sources`.
    pub(super) source_count: u32,
}

impl<A: Family> FamilyMaps<A> {
    fn open(open: &PinnedMaps) -> Result<Self, DatapathError> {
        let records: MappedArray<_> = open.take(A::RECORDS, MappedArray::new)?;
        let backends: MappedArray<_> = open.take(A::BACKENDS, MappedArray::new)?;
        Ok(Self {
            frontends: open.take(A::FRONTENDS, Table::new)?,
            sources: open.take(A::SOURCE_RANGES, Table::new)?,
            traffic: open.take(A::TRAFFIC, TrafficMap::new)?,
            record_ids: IdPool::new(records.capacity()),
            backend_ids: IdPool::new(backends.capacity()),
            index: HashMap::new(),
            source_count: 0,
            records,
            backends,
        })
    }

    pub(super) fn addresses(&self) -> NewAddresses<A> {
        let mut addresses = NewAddresses::default();
        for (key, record) in &self.index {
            addresses.add(self.records.load(record.0).flags.kind(), key.address);
        }
        addresses
    }
    pub(super) fn current(&self, state: &FamilyState) -> Current<A> {
        let frontends = state.frontends.iter().map(|record| {
            let stored = self.records.load(record.0);
            CurrentFrontend {
                record: *record,
                key: stored.key,
                flags: stored.flags,
                affinity_timeout: stored.affinity_timeout,
                reachable: self.index.get(&stored.key) == Some(record),
            }
        });
        let backends = state.backends.iter().map(|id| {
            let stored = self.backends.load(id.0);
            let plan = BackendPlan {
                address: stored.address,
                port: stored.port,
                sets: stored.sets,
                weight: 1,
                local_weight: None,
            };
            (*id, plan)
        });
        Current {
            frontends: frontends.collect(),
            backends: backends.collect(),
        }
    }

    /// Makes a record lead to the blocks in `state`. Each block is one 64-bit store, so a packet
    /// sees the old block or the new one. Returns how many stores were needed.
    pub(super) fn point_to_blocks(&self, id: RecordId, state: &FamilyState) -> usize {
        let record = self.records.load(id.0);
        let block = |external| state.block(record.flags.set_of_block(external));
        let mut written = 0;
        if record.internal != block(false) {
            self.records
                .store_u64(id.0, offset_of!(Record<A>, internal), block(false).0);
            written += 1;
        }
        if record.external != block(true) {
            self.records
                .store_u64(id.0, offset_of!(Record<A>, external), block(true).0);
            written += 1;
        }
        written
    }
    pub(super) fn store_sets(&self, id: BackendId, sets: EndpointSet) {
        self.backends
            .store_u16(id.0, offset_of!(Backend<A>, sets), sets.0);
    }
    /// Takes a backend out of use. Its generation changes, by which flows and sockets that refer to
    /// it notice that it is gone.
    pub(super) fn retire_backend(&self, id: BackendId) {
        let generation = self.backends.load(id.0).generation.wrapping_add(1);
        self.backends
            .store_u32(id.0, offset_of!(Backend<A>, generation), generation);
        self.store_sets(id, EndpointSet::NONE);
    }
    /// Resets the traffic counters for backends that have just got these ids. If the kernel refuses
    /// that, the counters have another generation, and the programs count the traffic for no
    /// backend in particular.
    pub(super) fn count_anew(&self, ids: impl Iterator<Item = BackendId>) {
        let generation = |id: BackendId| (id, self.backends.load(id.0).generation);
        let backends: Vec<_> = ids.map(generation).collect();
        if !backends.is_empty() {
            let _ = self.traffic.begin(&backends);
        }
    }
    /// Keeps the traffic counters of adopted backends, and resets those that belong to an earlier
    /// backend with the same id.
    pub(super) fn count_on(&self, ids: &HashSet<BackendId>) -> io::Result<()> {
        let end = ids.iter().map(|id| id.0 + 1).max().unwrap_or(0);
        let mut anew = Vec::new();
        self.traffic.each(end, |id, traffic| {
            let id = BackendId(id);
            let is_its =
                |id: u32| traffic.generation == u64::from(self.backends.load(id).generation);
            if ids.contains(&id) && !is_its(id.0) {
                anew.push(id);
            }
        })?;
        self.count_anew(anew.into_iter());
        Ok(())
    }
    /// Marks the element of a backend as unused.
    pub(super) fn disown_backend(&self, id: BackendId) {
        self.backends
            .store_u32(id.0, offset_of!(Backend<A>, service), 0);
    }

    fn fill(&self) -> [Fill; 4] {
        let (frontends, sources) = (self.frontends.capacity(), self.sources.capacity());
        let (records, backends) = (self.records.capacity(), self.backends.capacity());
        [
            Fill::new(A::FRONTENDS, self.index.len() as u32, frontends),
            Fill::new(A::RECORDS, records - self.record_ids.free(), records),
            Fill::new(A::BACKENDS, backends - self.backend_ids.free(), backends),
            Fill::new(A::SOURCE_RANGES, self.source_count, sources),
        ]
    }
}

/// The maps that plans are written into, and the free lists of their ids.
pub(crate) struct Maps {
    pub(super) v4: FamilyMaps<V4>,
    pub(super) v6: FamilyMaps<V6>,
    pub(super) slots: MappedArray<u32>,
    pub(super) blocks: BlockAllocator,
    pub(super) names: Table<u32, ServiceName>,
    pub(super) service_ids: IdPool,
    pub(super) last_service_id: u32,
    pub(super) ports: PortFilter,
    pub(super) refused: RefusedMap,
}

impl Maps {
    /// Opens the maps. All ids are free at first, whatever the maps contain.
    pub(super) fn open(open: &PinnedMaps) -> Result<Self, DatapathError> {
        let names: Table<u32, ServiceName> = open.take(names::NAMES, Table::new)?;
        let slots: MappedArray<u32> = open.take(names::SLOTS, MappedArray::new)?;
        Ok(Self {
            v4: FamilyMaps::open(open)?,
            v6: FamilyMaps::open(open)?,
            blocks: BlockAllocator::new(slots.capacity()),
            // Ids start at 1, so there are as many ids as names.
            service_ids: IdPool::new(names.capacity() + 1),
            last_service_id: 0,
            names,
            slots,
            ports: open.take(names::PORTS, PortFilter::new)?,
            refused: open.take(names::REFUSED, RefusedMap::new)?,
        })
    }
    /// Returns how full each of these maps is.
    pub(super) fn fill(&self) -> Vec<Fill> {
        let families = self.v4.fill().into_iter().chain(self.v6.fill());
        let (slots, services) = (self.slots.capacity(), self.names.capacity());
        let named = services.saturating_sub(self.service_ids.free());
        let shared = [
            Fill::new(names::SLOTS, slots - self.blocks.free(), slots),
            Fill::new(names::NAMES, named, services),
        ];
        families.chain(shared).collect()
    }
}
