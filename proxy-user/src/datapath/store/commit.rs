// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Second half of an apply: what was reserved is written, in the order that keeps every reader safe.
//! Called by `apply`.
//!
//! By memory, service after service: port bits, backends, slots, records, block words. Then by batches for
//! all services: names and source ranges, frontends, removed frontends, what only these led to; last, the
//! backends that are gone. Ids come back a grace period later.

use std::mem::offset_of;

use proxy_common::{
    Addr, Backend, BackendId, Block, EndpointSet, FrontendKey, FrontendKind, Port, Protocol,
    Record, RecordId, ServiceFlags, ServiceId, V4, V6, ports, service::ServiceName,
};

use super::{
    change::{BlockChange, FamilyChange, GuardChange, PortChange, ServiceChange},
    prepare::GUARD,
    state::{FamilyMaps, FamilyState, Maps, PortState, ServiceState, Stored, service_name},
};
use crate::{
    datapath::{
        maps::{arrays::MappedArray, family::Family},
        sys::LpmKey,
    },
    plan::ObjectName,
};

/// A frontend to be published.
pub(crate) struct NewFrontend<A> {
    pub(crate) key: FrontendKey<A>,
    pub(crate) record: RecordId,
    pub(crate) replaces: Option<RecordId>,
    /// Position of the service in the changes.
    pub(crate) change: usize,
}

/// A source range to be published.
pub(crate) struct NewSource<A> {
    pub(crate) key: LpmKey<A>,
    pub(crate) change: usize,
}

/// One family's batches.
pub(crate) struct FamilyRound<A: Addr> {
    pub(crate) frontends: Vec<NewFrontend<A>>,
    pub(crate) removed: Vec<(FrontendKey<A>, RecordId)>,
    pub(crate) sources: Vec<NewSource<A>>,
    pub(crate) removed_sources: Vec<LpmKey<A>>,
    pub(crate) gone_backends: Vec<BackendId>,
    /// Cluster IPs, for the range of them in the settings.
    pub(crate) cluster_ips: Vec<A>,
    new_keys: u32,
}

impl<A: Addr> Default for FamilyRound<A> {
    fn default() -> Self {
        Self {
            frontends: Vec::new(),
            removed: Vec::new(),
            sources: Vec::new(),
            removed_sources: Vec::new(),
            gone_backends: Vec::new(),
            cluster_ips: Vec::new(),
            new_keys: 0,
        }
    }
}

impl<A: Addr> FamilyRound<A> {
    /// Keys that are not in the map yet.
    pub(crate) fn new_frontends(&self) -> u32 {
        self.new_keys
    }
    /// Source ranges that are not in the map yet.
    pub(crate) fn new_sources(&self) -> u32 {
        self.sources.len() as u32
    }
}

/// What one apply has to do by batches, for all its services.
#[derive(Default)]
pub(crate) struct Round {
    pub(crate) v4: FamilyRound<V4>,
    pub(crate) v6: FamilyRound<V6>,
    pub(crate) names: Vec<(u32, ServiceName, usize)>,
    pub(crate) removed_services: Vec<ServiceId>,
    pub(crate) freed_blocks: Vec<Block>,
    pub(crate) written: usize,
    /// UDP backends have gone.
    pub(crate) udp_lost: bool,
}

/// Sets bits of the port filter, which must come before what they announce is reachable.
pub(crate) fn announce(filter: &MappedArray<u64>, port: Port, bits: u64) -> usize {
    let port = port.host();
    let at = ports::word_of(port);
    let wanted = ports::in_word(bits, port);
    if filter.load(at) & wanted == wanted {
        return 0;
    }
    filter.set_bits(at, wanted);
    1
}

/// Clears bits that nothing stands behind any more.
pub(crate) fn retract(filter: &MappedArray<u64>, port: u16, bits: u64) {
    let at = ports::word_of(port);
    filter.clear_bits(at, ports::in_word(bits, port));
}

/// Writes by memory what a service's change reserved, and queues the rest.
pub(crate) fn commit(
    maps: &mut Maps,
    state: &mut ServiceState,
    name: &ObjectName,
    change: ServiceChange<'_>,
    at: usize,
    round: &mut Round,
) {
    let first = change.ports.first().map(|port| port.id);
    let old = std::mem::take(&mut state.ports);
    let mut old: Vec<Option<PortState>> = old.into_iter().map(Some).collect();
    // Most services have one port; a vector that grows by itself makes room for four.
    state.ports.reserve_exact(change.ports.len());
    for port in change.ports {
        let existing = port
            .existing
            .and_then(|at| old.get_mut(at).and_then(Option::take));
        let port = commit_port(maps, existing, name, port, at, round);
        state.ports.push(port);
    }
    for gone in old.into_iter().flatten() {
        remove_port(maps, gone, round);
    }
    commit_guards::<V4>(maps, state, first, change.guards_v4, at, round);
    commit_guards::<V6>(maps, state, first, change.guards_v6, at, round);
}

fn commit_port(
    maps: &mut Maps,
    old: Option<PortState>,
    name: &ObjectName,
    change: PortChange<'_>,
    at: usize,
    round: &mut Round,
) -> PortState {
    let plan = change.plan;
    if old.as_ref().is_none_or(|old| old.port != plan.port) {
        let value = service_name(name, &plan.name, plan.port, plan.protocol);
        round.names.push((change.id.0, value, at));
    }
    let mut state = old.unwrap_or_else(|| PortState {
        id: change.id,
        name: std::sync::Arc::clone(&plan.name),
        port: plan.port,
        protocol: plan.protocol,
        source_ranges: Vec::new(),
        v4: FamilyState::default(),
        v6: FamilyState::default(),
    });
    state.port = plan.port;
    commit_sources::<V4>(&state, &change, at, round);
    commit_sources::<V6>(&state, &change, at, round);
    state.source_ranges = change.source_ranges;
    commit_family::<V4>(
        maps,
        &mut state,
        change.v4,
        at,
        round,
        plan.affinity_timeout,
    );
    commit_family::<V6>(
        maps,
        &mut state,
        change.v6,
        at,
        round,
        plan.affinity_timeout,
    );
    state
}

fn commit_sources<A: Stored>(
    old: &PortState,
    change: &PortChange<'_>,
    at: usize,
    round: &mut Round,
) {
    let keys = |ranges: &[ipnet::IpNet], others: &[ipnet::IpNet]| -> Vec<LpmKey<A>> {
        ranges
            .iter()
            .filter(|range| !others.contains(range))
            .filter_map(|range| A::source_range(change.id, range))
            .collect()
    };
    let added = keys(&change.source_ranges, &old.source_ranges);
    let removed = keys(&old.source_ranges, &change.source_ranges);
    let round = A::round_mut(round);
    round
        .sources
        .extend(added.into_iter().map(|key| NewSource { key, change: at }));
    round.removed_sources.extend(removed);
}

fn commit_block(
    maps: &Maps,
    old: Block,
    change: BlockChange,
    freed: &mut Vec<Block>,
    written: &mut usize,
) -> Block {
    match change {
        BlockChange::Keep => old,
        BlockChange::Replace { block, slots } => {
            for (at, id) in (block.first()..).zip(&slots) {
                maps.slots.store_u32(at, 0, *id);
            }
            *written += slots.len();
            freed.push(old);
            block
        }
        BlockChange::Shrink { block, rest } => {
            freed.extend(rest);
            block
        }
    }
}

fn commit_family<A: Stored>(
    maps: &mut Maps,
    port: &mut PortState,
    change: FamilyChange<A>,
    at: usize,
    round: &mut Round,
    affinity_timeout: u32,
) {
    let (service, protocol) = (port.id, port.protocol);
    let mut written = 0;
    for (_, backend, _) in change.backends.iter().filter(|(_, _, new)| *new) {
        written += announce(&maps.ports, backend.port, ports::BACKEND);
    }
    for (frontend, _) in &change.delta.new_frontends {
        let bit = match frontend.kind() {
            FrontendKind::NodePort => ports::NODE_PORT,
            _ => ports::FRONTEND,
        };
        written += announce(&maps.ports, frontend.port, bit);
    }

    let family = A::maps(maps);
    for (id, backend, _) in change.backends.iter().filter(|(_, _, new)| *new) {
        let value = Backend {
            address: backend.address,
            port: backend.port,
            sets: backend.sets,
            generation: family.backends.load(id.0).generation,
            service,
        };
        family.backends.store(id.0, &value);
        written += 1;
    }
    for (id, sets) in &change.delta.changed_sets {
        store_sets(family, *id, *sets);
        written += 1;
    }

    let state = A::state(port);
    let mut freed = Vec::new();
    let cluster = commit_block(
        maps,
        state.cluster,
        change.cluster,
        &mut freed,
        &mut written,
    );
    let local = commit_block(maps, state.local, change.local, &mut freed, &mut written);
    round.freed_blocks.extend(freed);

    let state = A::state_mut(port);
    (state.cluster, state.local) = (cluster, local);
    state.backends = change.backends.iter().map(|(id, _, _)| *id).collect();
    let batch = A::round_mut(round);
    batch.gone_backends.extend(&change.delta.gone_backends);
    round.udp_lost |= mark_stale::<A>(maps, &change.delta.gone_backends, protocol);
    let batch = A::round_mut(round);
    let family = A::maps(maps);

    // Records that are being replaced or removed as well: they may be read until the batches are through,
    // and for longer if the kernel refuses one.
    for record in &state.frontends {
        written += point_to_blocks(family, *record, state);
    }
    for ((frontend, replaces), record) in change.delta.new_frontends.iter().zip(change.records) {
        let key = super::delta::key_of(frontend, protocol);
        let value = Record {
            internal: state.block(frontend.flags.set_of_block(false)),
            external: state.block(frontend.flags.set_of_block(true)),
            flags: frontend.flags,
            service,
            affinity_timeout,
            key,
            _pad: A::RecordPad::default(),
        };
        family.records.store(record.0, &value);
        written += 1;
        if frontend.kind() == FrontendKind::ClusterIp {
            batch.cluster_ips.push(frontend.address);
        }
        queue(family, batch, key, record, *replaces, at);
        state.frontends.retain(|old| Some(*old) != *replaces);
        state.frontends.push(record);
    }
    for record in &change.delta.gone_frontends {
        batch
            .removed
            .push((family.records.load(record.0).key, *record));
    }
    state
        .frontends
        .retain(|record| !change.delta.gone_frontends.contains(record));
    round.written += written;
}

fn queue<A: Family>(
    family: &FamilyMaps<A>,
    batch: &mut FamilyRound<A>,
    key: FrontendKey<A>,
    record: RecordId,
    replaces: Option<RecordId>,
    change: usize,
) {
    batch.new_keys += u32::from(!family.index.contains_key(&key));
    batch.frontends.push(NewFrontend {
        key,
        record,
        replaces,
        change,
    });
}

/// Stores the block words that differ: a packet sees the old set or the new one.
pub(crate) fn point_to_blocks<A: Family>(
    maps: &FamilyMaps<A>,
    id: RecordId,
    state: &FamilyState,
) -> usize {
    let record = maps.records.load(id.0);
    let block = |external| state.block(record.flags.set_of_block(external));
    let mut written = 0;
    if record.internal != block(false) {
        maps.records
            .store_u64(id.0, offset_of!(Record<A>, internal), block(false).0);
        written += 1;
    }
    if record.external != block(true) {
        maps.records
            .store_u64(id.0, offset_of!(Record<A>, external), block(true).0);
        written += 1;
    }
    written
}

/// Leads a record nowhere.
pub(crate) fn empty_blocks<A: Family>(maps: &FamilyMaps<A>, id: RecordId) {
    point_to_blocks(maps, id, &FamilyState::default());
}

/// Stores which sets a backend is in.
pub(crate) fn store_sets<A: Family>(maps: &FamilyMaps<A>, id: BackendId, sets: EndpointSet) {
    maps.backends
        .store_u16(id.0, offset_of!(Backend<A>, sets), sets.0);
}

/// Notes on which ports pods' sockets may be connected to UDP backends that are about to go; whether any
/// is.
fn mark_stale<A: Stored>(maps: &Maps, gone: &[BackendId], protocol: Protocol) -> bool {
    if protocol != Protocol::UDP || gone.is_empty() {
        return false;
    }
    for id in gone {
        announce(
            &maps.ports,
            A::maps(maps).backends.load(id.0).port,
            ports::STALE,
        );
    }
    true
}

/// Makes everything that remembers the backend remember a dead one.
pub(crate) fn retire_backend<A: Family>(maps: &FamilyMaps<A>, id: BackendId) {
    let generation = maps.backends.load(id.0).generation.wrapping_add(1);
    maps.backends
        .store_u32(id.0, offset_of!(Backend<A>, generation), generation);
    store_sets(maps, id, EndpointSet::NONE);
}

fn remove_port(maps: &Maps, port: PortState, round: &mut Round) {
    fn remove<A: Stored>(maps: &Maps, port: &PortState, round: &mut Round) {
        let (family, state) = (A::maps(maps), A::state(port));
        round.freed_blocks.extend([state.cluster, state.local]);
        round.udp_lost |= mark_stale::<A>(maps, &state.backends, port.protocol);
        let batch = A::round_mut(round);
        batch.gone_backends.extend(&state.backends);
        for record in &state.frontends {
            batch
                .removed
                .push((family.records.load(record.0).key, *record));
        }
        batch.removed_sources.extend(
            port.source_ranges
                .iter()
                .filter_map(|range| A::source_range(port.id, range)),
        );
    }
    remove::<V4>(maps, &port, round);
    remove::<V6>(maps, &port, round);
    round.removed_services.push(port.id);
}

fn commit_guards<A: Stored>(
    maps: &Maps,
    state: &mut ServiceState,
    service: Option<ServiceId>,
    change: GuardChange<A>,
    at: usize,
    round: &mut Round,
) {
    let family = A::maps(maps);
    let mut guards = change.kept;
    let mut written = 0;
    let batch = A::round_mut(round);
    let old: Vec<(FrontendKey<A>, RecordId)> = A::guards(state)
        .iter()
        .map(|id| (family.records.load(id.0).key, *id))
        .collect();
    let mut replaced = Vec::new();
    for (address, record) in change.new {
        let key = FrontendKey::unserved(address);
        let value = Record {
            internal: Block::EMPTY,
            external: Block::EMPTY,
            flags: ServiceFlags(GUARD.0),
            service: service.unwrap_or_default(),
            affinity_timeout: 0,
            key,
            _pad: A::RecordPad::default(),
        };
        family.records.store(record.0, &value);
        written += 1;
        batch.cluster_ips.push(address);
        let replaces = old
            .iter()
            .find(|(old, id)| *old == key && !guards.contains(id))
            .map(|(_, id)| *id);
        replaced.extend(replaces);
        queue(family, batch, key, record, replaces, at);
        guards.push(record);
    }
    batch.removed.extend(
        old.into_iter()
            .filter(|(_, id)| !guards.contains(id) && !replaced.contains(id)),
    );
    *A::guards_mut(state) = guards;
    round.written += written;
}
