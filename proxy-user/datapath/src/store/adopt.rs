// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rebuilds the agent's state from the pinned maps after a restart, so that only differences are
//! written. Does not trust the maps: it ignores ids that are out of range, used twice or lead to
//! nothing, and removes the keys that lead to such ids. Called by `Store::adopt`.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use control::object::ObjectName;
use linux::text;
use proxy_common::{
    BackendId, EndpointSet, FrontendKey, FrontendKind, RecordId, ServiceId, V4, V6, maps as names,
};

use super::{
    maps::Maps,
    state::{PortState, ServiceState, Stored, normal_ranges},
};
use crate::{error::DatapathError, maps::tables::first_error};

/// A service port found in the maps, and the name of its service. The guards are records that
/// reject unserved ports of cluster IPs.
struct Found {
    service: ObjectName,
    port: PortState,
    guards: [Vec<RecordId>; 2],
}

/// Returns the state of all services found in the maps, and takes their ids from the free lists.
pub(super) fn adopt(all: &mut Maps) -> Result<HashMap<ObjectName, ServiceState>, DatapathError> {
    let mut found = adopt_names(all)?;
    adopt_family::<V4>(all, &mut found)?;
    adopt_family::<V6>(all, &mut found)?;

    let refused = &all.refused;
    let forgotten = refused.forget(|id| !found.contains_key(&id));
    forgotten
        .and_then(|()| refused.prepare())
        .map_err(DatapathError::of_map("prepare", names::REFUSED))?;

    let mut services: HashMap<ObjectName, ServiceState> = HashMap::new();
    for (_, mut entry) in found {
        entry.port.source_ranges = normal_ranges(&entry.port.source_ranges);
        let state = services.entry(entry.service).or_default();
        // A vector that grows by itself allocates memory for four ports, as in `commit`.
        state.ports.reserve_exact(1);
        state.ports.push(entry.port);
        for (guards, more) in state.guards.iter_mut().zip(entry.guards) {
            guards.extend(more);
        }
    }
    Ok(services)
}

fn adopt_names(all: &mut Maps) -> Result<HashMap<ServiceId, Found>, DatapathError> {
    let mut found = HashMap::new();
    let mut seen = HashSet::new();
    let stored = all.names.entries();
    for (id, name) in stored.map_err(DatapathError::of_map("read", names::NAMES))? {
        let service = ObjectName::new(&text(&name.namespace), &text(&name.name));
        let port_name: Arc<str> = text(&name.port_name).into();
        let once = seen.insert((service.clone(), Arc::clone(&port_name), name.protocol));
        if !once || !all.service_ids.claim(id) {
            // A second id for one service port: its elements have no owner, and are removed below.
            all.names
                .delete(&id)
                .map_err(DatapathError::of_map("clean up", names::NAMES))?;
            continue;
        }
        all.last_service_id = all.last_service_id.max(id);
        let port = PortState {
            id: ServiceId(id),
            name: port_name,
            port: name.port,
            protocol: name.protocol,
            source_ranges: Vec::new(),
            families: Default::default(),
        };
        let entry = Found {
            service,
            port,
            guards: Default::default(),
        };
        found.insert(ServiceId(id), entry);
    }
    Ok(found)
}

fn adopt_family<A: Stored>(
    all: &mut Maps,
    found: &mut HashMap<ServiceId, Found>,
) -> Result<(), DatapathError> {
    adopt_frontends::<A>(all, found)?;
    adopt_backends::<A>(all, found)?;
    adopt_sources::<A>(all, found)?;
    for entry in found.values_mut() {
        adopt_blocks::<A>(all, &mut entry.port)?;
    }
    let backends = found
        .values()
        .flat_map(|found| &found.port.families[A::AT].backends);
    let counted = A::maps(all).count_on(&backends.copied().collect());
    counted.map_err(DatapathError::of_map("read", A::TRAFFIC))
}

fn adopt_frontends<A: Stored>(
    all: &mut Maps,
    found: &mut HashMap<ServiceId, Found>,
) -> Result<(), DatapathError> {
    let maps = A::maps_mut(all);
    let mut dangling: Vec<FrontendKey<A>> = Vec::new();
    let stored = maps.frontends.entries();
    for (key, id) in stored.map_err(DatapathError::of_map("read", A::FRONTENDS))? {
        let id = RecordId(id);
        if id.0 >= maps.records.capacity() {
            dangling.push(key);
            continue;
        }
        maps.records
            .ensure(id.0, 1)
            .map_err(DatapathError::of_map("map", A::RECORDS))?;
        let record = maps.records.load(id.0);
        let entry = found.get_mut(&record.service).filter(|_| record.key == key);
        let Some(entry) = entry.filter(|_| maps.record_ids.claim(id.0)) else {
            dangling.push(key);
            continue;
        };
        maps.index.insert(key, id);
        if record.flags.kind() == FrontendKind::Unserved {
            entry.guards[A::AT].push(id);
        } else {
            entry.port.families[A::AT].frontends.push(id);
        }
    }
    first_error(maps.frontends.delete_all(&dangling))
        .map_err(DatapathError::of_map("clean up", A::FRONTENDS))
}

fn adopt_backends<A: Stored>(
    all: &mut Maps,
    found: &mut HashMap<ServiceId, Found>,
) -> Result<(), DatapathError> {
    let maps = A::maps_mut(all);
    let mut owned: Vec<(ServiceId, A, proxy_common::Port, BackendId)> = Vec::new();
    let mut orphans = Vec::new();
    let scan = maps.backends.scan(|id, backend| {
        if id == 0 || backend.service == ServiceId::default() {
            return false;
        }
        if found.contains_key(&backend.service) {
            owned.push((
                backend.service,
                backend.address,
                backend.port,
                BackendId(id),
            ));
        } else {
            orphans.push(BackendId(id));
        }
        true
    });
    scan.map_err(DatapathError::of_map("read", A::BACKENDS))?;
    owned.sort_unstable();
    let mut last = None;
    for (service, address, port, id) in owned {
        let twice = last.replace((service, address, port)) == Some((service, address, port));
        match found.get_mut(&service) {
            Some(entry) if !twice && maps.backend_ids.claim(id.0) => {
                entry.port.families[A::AT].backends.push(id);
            }
            _ => orphans.push(id),
        }
    }
    for id in orphans {
        maps.retire_backend(id);
        maps.disown_backend(id);
    }
    Ok(())
}

fn adopt_sources<A: Stored>(
    all: &mut Maps,
    found: &mut HashMap<ServiceId, Found>,
) -> Result<(), DatapathError> {
    let maps = A::maps_mut(all);
    let mut dangling = Vec::new();
    let stored = maps.sources.entries();
    for (key, _) in stored.map_err(DatapathError::of_map("read", A::SOURCE_RANGES))? {
        match (found.get_mut(&key.data.service), A::range_of(&key)) {
            (Some(entry), Some(range)) => {
                entry.port.source_ranges.push(range);
                maps.source_count += 1;
            }
            _ => dangling.push(key),
        }
    }
    first_error(maps.sources.delete_all(&dangling))
        .map_err(DatapathError::of_map("clean up", A::SOURCE_RANGES))
}

/// Adopts the blocks of slots that a port's records lead to. If the agent ended between two stores,
/// records may differ: then the block of the first one is used for all of them.
fn adopt_blocks<A: Stored>(all: &mut Maps, port: &mut PortState) -> Result<(), DatapathError> {
    let (mut cluster, mut local) = (None, None);
    let state = &mut port.families[A::AT];
    for id in &state.frontends {
        let record = A::maps(all).records.load(id.0);
        for (external, block) in [(false, record.internal), (true, record.external)] {
            let set = record.flags.set_of_block(external);
            let of_set = if set == EndpointSet::LOCAL {
                &mut local
            } else {
                &mut cluster
            };
            of_set.get_or_insert(block);
        }
    }
    for (block, adopted) in [(cluster, &mut state.cluster), (local, &mut state.local)] {
        let Some(block) = block.filter(|block| block.count() > 0 && all.blocks.claim(*block))
        else {
            continue;
        };
        all.slots
            .ensure(block.first(), block.count())
            .map_err(DatapathError::of_map("map", names::SLOTS))?;
        *adopted = block;
    }
    // A record must not lead to any other block, which is free or belongs to another service.
    for id in &state.frontends {
        A::maps(all).point_to_blocks(*id, state);
    }
    Ok(())
}
