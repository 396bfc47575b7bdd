// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Second part of an apply, one service at a time. Writes memory-mapped arrays in an order that is
//! safe for every reader: port bits, backends, slots, the blocks in existing records, new records.
//! Queues elements of hash maps for `publish`. Called by `apply`.

use std::collections::HashSet;

use control::object::ObjectName;
use linux::LpmKey;
use proxy_common::{Backend, Block, FrontendKind, Protocol, Record, V4, V6, ports};

use super::{
    change::{Batches, BlockChange, FamilyChange, NewSource, PortChange, ServiceChange},
    delta::key_of,
    guards::commit_guards,
    maps::Maps,
    state::{PortState, ServiceState, Stored},
};
use crate::maps::service_name;

/// Writes the part of a service's change that is in memory-mapped arrays, and queues the rest in
/// `batches`. `at` is the index of the service in the changes of the apply.
pub(super) fn commit(
    maps: &mut Maps,
    state: &mut ServiceState,
    name: &ObjectName,
    change: ServiceChange<'_>,
    at: usize,
    batches: &mut Batches,
) {
    let first = change.ports.first().map(|port| port.id);
    let old = std::mem::take(&mut state.ports);
    let mut old: Vec<Option<PortState>> = old.into_iter().map(Some).collect();
    // Most services have one port, but a vector that grows by itself allocates memory for four.
    state.ports.reserve_exact(change.ports.len());
    for port in change.ports {
        let existing = port
            .existing
            .and_then(|at| old.get_mut(at).and_then(Option::take));
        let port = commit_port(maps, existing, name, port, at, batches);
        state.ports.push(port);
    }
    for gone in old.into_iter().flatten() {
        remove_port(maps, gone, batches);
    }
    commit_guards::<V4>(maps, state, first, change.guards_v4, at, batches);
    commit_guards::<V6>(maps, state, first, change.guards_v6, at, batches);
}

/// Returns the port filter's bit that a frontend of this kind needs; `None` if it needs no bit.
pub(super) fn port_bit(kind: FrontendKind) -> Option<u64> {
    match kind {
        FrontendKind::NodePort => Some(ports::NODE_PORT),
        FrontendKind::Echo | FrontendKind::Unserved => None,
        _ => Some(ports::FRONTEND),
    }
}

fn commit_port(
    maps: &mut Maps,
    old: Option<PortState>,
    name: &ObjectName,
    change: PortChange<'_>,
    at: usize,
    batches: &mut Batches,
) -> PortState {
    let plan = change.plan;
    if old.as_ref().is_none_or(|old| old.port != plan.port) {
        let value = service_name(name, &plan.name, plan.port, plan.protocol);
        batches.names.push((change.id.0, value, at));
    }
    let mut state = old.unwrap_or_else(|| PortState {
        id: change.id,
        name: std::sync::Arc::clone(&plan.name),
        port: plan.port,
        protocol: plan.protocol,
        source_ranges: Vec::new(),
        families: Default::default(),
    });
    state.port = plan.port;
    commit_sources::<V4>(&state, &change, at, batches);
    commit_sources::<V6>(&state, &change, at, batches);
    state.source_ranges = change.source_ranges;
    let timeout = plan.affinity_timeout;
    commit_family::<V4>(maps, &mut state, change.v4, at, batches, timeout);
    commit_family::<V6>(maps, &mut state, change.v6, at, batches, timeout);
    state
}

fn commit_sources<A: Stored>(
    old: &PortState,
    change: &PortChange<'_>,
    at: usize,
    batches: &mut Batches,
) {
    let keys = |ranges: &[ipnet::IpNet], others: &[ipnet::IpNet]| -> Vec<LpmKey<A>> {
        ranges
            .iter()
            .filter(|range| others.binary_search(range).is_err())
            .filter_map(|range| A::source_range(change.id, range))
            .collect()
    };
    let added = keys(&change.source_ranges, &old.source_ranges);
    let removed = keys(&old.source_ranges, &change.source_ranges);
    let batches = A::batches_mut(batches);
    batches
        .sources
        .extend(added.into_iter().map(|key| NewSource { key, change: at }));
    batches.removed_sources.extend(removed);
}

fn commit_block(maps: &Maps, old: Block, change: BlockChange, batches: &mut Batches) -> Block {
    match change {
        BlockChange::Keep => old,
        BlockChange::Replace { block, slots } => {
            for (at, id) in (block.first()..).zip(&slots) {
                maps.slots.store_u32(at, 0, *id);
            }
            batches.written += slots.len();
            batches.freed_blocks.push(old);
            block
        }
        BlockChange::Shrink { block, rest } => {
            batches.freed_blocks.extend(rest);
            block
        }
    }
}

fn commit_family<A: Stored>(
    maps: &mut Maps,
    port: &mut PortState,
    change: FamilyChange<A>,
    at: usize,
    batches: &mut Batches,
    affinity_timeout: u32,
) {
    let (service, protocol) = (port.id, port.protocol);
    let mut written = 0;
    for (_, backend, _) in change.backends.iter().filter(|(_, _, new)| *new) {
        written += maps.ports.announce(backend.port, ports::BACKEND);
    }
    for (frontend, _) in &change.delta.new_frontends {
        let bit = port_bit(frontend.flags.kind());
        written += bit.map_or(0, |bit| maps.ports.announce(frontend.port, bit));
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
    let new = change.backends.iter().filter(|(_, _, new)| *new);
    family.count_anew(new.map(|(id, _, _)| *id));
    for (id, sets) in &change.delta.changed_sets {
        family.store_sets(*id, *sets);
        written += 1;
    }

    let state = &port.families[A::AT];
    let cluster = commit_block(maps, state.cluster, change.cluster, batches);
    let local = commit_block(maps, state.local, change.local, batches);

    let state = &mut port.families[A::AT];
    let is_again = !state.frontends.is_empty() && state.backends.is_empty();
    (state.cluster, state.local) = (cluster, local);
    state.backends = change.backends.iter().map(|(id, _, _)| *id).collect();
    let gone_backends = &mut A::batches_mut(batches).gone_backends;
    gone_backends.extend(&change.delta.gone_backends);
    let is_less = !change.delta.gone_backends.is_empty() || !change.delta.gone_frontends.is_empty();
    batches.udp_lost |= protocol == Protocol::UDP && (is_less || is_again);
    let batch = A::batches_mut(batches);

    // This includes records that will be replaced or removed: programs read these until the batches
    // are written, and longer if the kernel refuses an element.
    for record in &state.frontends {
        written += family.point_to_blocks(*record, state);
    }
    let replaced = change.delta.new_frontends.iter();
    let mut gone: HashSet<_> = replaced.filter_map(|(_, replaces)| *replaces).collect();
    gone.extend(&change.delta.gone_frontends);
    state.frontends.retain(|record| !gone.contains(record));
    for ((frontend, replaces), record) in change.delta.new_frontends.iter().zip(change.records) {
        let value = Record {
            internal: state.block(frontend.flags.set_of_block(false)),
            external: state.block(frontend.flags.set_of_block(true)),
            flags: frontend.flags,
            service,
            affinity_timeout,
            key: key_of(frontend, protocol),
            _pad: A::RecordPad::default(),
        };
        batch.add_record(family, record, &value, *replaces, at);
        written += 1;
        state.frontends.push(record);
    }
    for record in &change.delta.gone_frontends {
        batch
            .removed
            .push((family.records.load(record.0).key, *record));
    }
    batches.written += written;
}

fn remove_port(maps: &Maps, port: PortState, batches: &mut Batches) {
    fn remove<A: Stored>(maps: &Maps, port: &PortState, batches: &mut Batches) {
        let (family, state) = (A::maps(maps), &port.families[A::AT]);
        batches.freed_blocks.extend([state.cluster, state.local]);
        batches.udp_lost |= port.protocol == Protocol::UDP && !state.frontends.is_empty();
        let batch = A::batches_mut(batches);
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
    remove::<V4>(maps, &port, batches);
    remove::<V6>(maps, &port, batches);
    batches.removed_services.push(port.id);
}
