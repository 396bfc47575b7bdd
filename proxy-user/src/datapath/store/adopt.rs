// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rebuilds the agent's view from pinned maps after a restart, so that only differences are written. What
//! is found there is not trusted: ids out of range, claimed twice or leading nowhere are not adopted, and
//! keys that lead to such are removed. Called by `Datapath::open`.

use std::{
    collections::{HashMap, HashSet},
    io,
    mem::offset_of,
    os::fd::OwnedFd,
    sync::Arc,
};

use proxy_common::{
    Backend, BackendId, EndpointSet, FrontendKey, FrontendKind, RecordId, ServiceId, V4, V6, maps,
    ports, service::ServiceName,
};

use super::{
    blocks::BlockAllocator,
    commit::point_to_blocks,
    ids::IdPool,
    prepare::normal_ranges,
    state::{FamilyMaps, FamilyState, Maps, PortState, ServiceState, Stored, text},
};
use crate::{
    datapath::{
        error::DatapathError,
        maps::{arrays::MappedArray, family::Family, tables::Table},
    },
    plan::ObjectName,
};

/// A service port found in the maps, and the service it belongs to.
struct Found {
    service: ObjectName,
    port: PortState,
    guards_v4: Vec<RecordId>,
    guards_v6: Vec<RecordId>,
}

/// Opens the maps that plans are published in and adopts what they hold.
pub(crate) fn adopt(
    fds: &mut HashMap<&'static str, OwnedFd>,
) -> Result<(Maps, HashMap<ObjectName, ServiceState>), DatapathError> {
    let names: Table<u32, ServiceName> = opened(fds, maps::NAMES, Table::new)?;
    let slots: MappedArray<u32> = opened(fds, maps::SLOTS, MappedArray::new)?;
    let filter: MappedArray<u64> = opened(fds, maps::PORTS, MappedArray::new)?;
    filter
        .ensure(0, ports::WORDS)
        .map_err(failed("map", maps::PORTS))?;
    let mut all = Maps {
        v4: family_maps(fds)?,
        v6: family_maps(fds)?,
        blocks: BlockAllocator::new(slots.capacity()),
        // From 1 on, so that as many fit as names do.
        service_ids: IdPool::new(names.capacity() + 1),
        last_service_id: 0,
        names,
        slots,
        ports: filter,
    };
    let mut found = adopt_names(&mut all)?;
    adopt_family::<V4>(&mut all, &mut found)?;
    adopt_family::<V6>(&mut all, &mut found)?;

    let mut services: HashMap<ObjectName, ServiceState> = HashMap::new();
    for (_, mut entry) in found {
        entry.port.source_ranges = normal_ranges(&entry.port.source_ranges);
        let state = services.entry(entry.service).or_default();
        // As many as there are: see `publish::commit`.
        state.ports.reserve_exact(1);
        state.ports.push(entry.port);
        state.guards_v4.extend(entry.guards_v4);
        state.guards_v6.extend(entry.guards_v6);
    }
    Ok((all, services))
}

fn failed(attempt: &'static str, map: &'static str) -> impl Fn(io::Error) -> DatapathError {
    move |source| DatapathError::Map {
        attempt,
        map,
        source,
    }
}

/// Takes a map's descriptor and wraps it.
pub(crate) fn opened<T>(
    fds: &mut HashMap<&'static str, OwnedFd>,
    map: &'static str,
    wrap: impl Fn(OwnedFd) -> io::Result<T>,
) -> Result<T, DatapathError> {
    let fd = fds
        .remove(map)
        .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound));
    fd.and_then(wrap).map_err(failed("open", map))
}

fn family_maps<A: Family>(
    fds: &mut HashMap<&'static str, OwnedFd>,
) -> Result<FamilyMaps<A>, DatapathError> {
    let records: MappedArray<_> = opened(fds, A::RECORDS, MappedArray::new)?;
    let backends: MappedArray<_> = opened(fds, A::BACKENDS, MappedArray::new)?;
    Ok(FamilyMaps {
        frontends: opened(fds, A::FRONTENDS, Table::new)?,
        sources: opened(fds, A::SOURCE_RANGES, Table::new)?,
        record_ids: IdPool::new(records.capacity()),
        backend_ids: IdPool::new(backends.capacity()),
        index: HashMap::new(),
        source_count: 0,
        records,
        backends,
    })
}

fn adopt_names(all: &mut Maps) -> Result<HashMap<ServiceId, Found>, DatapathError> {
    let mut found = HashMap::new();
    let mut seen = HashSet::new();
    for (id, name) in all.names.entries().map_err(failed("read", maps::NAMES))? {
        let service = ObjectName::new(&text(&name.namespace), &text(&name.name));
        let port_name: Arc<str> = text(&name.port_name).into();
        let once = seen.insert((service.clone(), Arc::clone(&port_name), name.protocol));
        if !once || !all.service_ids.claim(id) {
            // Two ids for one service port: what the second leads to is found by nobody and removed below.
            all.names
                .delete(&id)
                .map_err(failed("clean up", maps::NAMES))?;
            continue;
        }
        all.last_service_id = all.last_service_id.max(id);
        let port = PortState {
            id: ServiceId(id),
            name: port_name,
            port: name.port,
            protocol: name.protocol,
            source_ranges: Vec::new(),
            v4: FamilyState::default(),
            v6: FamilyState::default(),
        };
        let entry = Found {
            service,
            port,
            guards_v4: Vec::new(),
            guards_v6: Vec::new(),
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
    Ok(())
}

fn adopt_frontends<A: Stored>(
    all: &mut Maps,
    found: &mut HashMap<ServiceId, Found>,
) -> Result<(), DatapathError> {
    let maps = A::maps_mut(all);
    let mut dangling: Vec<FrontendKey<A>> = Vec::new();
    for (key, id) in maps
        .frontends
        .entries()
        .map_err(failed("read", A::FRONTENDS))?
    {
        let id = RecordId(id);
        if id.0 >= maps.records.capacity() {
            dangling.push(key);
            continue;
        }
        maps.records
            .ensure(id.0, 1)
            .map_err(failed("map", A::RECORDS))?;
        let record = maps.records.load(id.0);
        let entry = found.get_mut(&record.service).filter(|_| record.key == key);
        let Some(entry) = entry.filter(|_| maps.record_ids.claim(id.0)) else {
            dangling.push(key);
            continue;
        };
        maps.index.insert(key, id);
        if record.flags.kind() == FrontendKind::Unserved {
            let guards = if A::BITS == 32 {
                &mut entry.guards_v4
            } else {
                &mut entry.guards_v6
            };
            guards.push(id);
        } else {
            A::state_mut(&mut entry.port).frontends.push(id);
        }
    }
    if let Some(refused) = maps.frontends.delete_all(&dangling).into_iter().next() {
        return Err(failed("clean up", A::FRONTENDS)(refused.error));
    }
    Ok(())
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
            orphans.push(id);
        }
        true
    });
    scan.map_err(failed("read", A::BACKENDS))?;
    owned.sort_unstable();
    let mut last = None;
    for (service, address, port, id) in owned {
        let twice = last.replace((service, address, port)) == Some((service, address, port));
        match found.get_mut(&service) {
            Some(entry) if !twice && maps.backend_ids.claim(id.0) => {
                A::state_mut(&mut entry.port).backends.push(id);
            }
            _ => orphans.push(id.0),
        }
    }
    for id in orphans {
        let generation = maps.backends.load(id).generation.wrapping_add(1);
        maps.backends
            .store_u32(id, offset_of!(Backend<A>, generation), generation);
        maps.backends.store_u16(id, offset_of!(Backend<A>, sets), 0);
        maps.backends
            .store_u32(id, offset_of!(Backend<A>, service), 0);
    }
    Ok(())
}

fn adopt_sources<A: Stored>(
    all: &mut Maps,
    found: &mut HashMap<ServiceId, Found>,
) -> Result<(), DatapathError> {
    let maps = A::maps_mut(all);
    let mut dangling = Vec::new();
    for (key, _) in maps
        .sources
        .entries()
        .map_err(failed("read", A::SOURCE_RANGES))?
    {
        match (found.get_mut(&key.data.service), A::range_of(&key)) {
            (Some(entry), Some(range)) => {
                entry.port.source_ranges.push(range);
                maps.source_count += 1;
            }
            _ => dangling.push(key),
        }
    }
    if let Some(refused) = maps.sources.delete_all(&dangling).into_iter().next() {
        return Err(failed("clean up", A::SOURCE_RANGES)(refused.error));
    }
    Ok(())
}

/// Takes over the blocks that a port's records lead to. Where records differ (the agent ended between two
/// stores) the first one's counts for all.
fn adopt_blocks<A: Stored>(all: &mut Maps, port: &mut PortState) -> Result<(), DatapathError> {
    let (mut cluster, mut local) = (None, None);
    for id in &A::state(port).frontends {
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
    for (set, block) in [(EndpointSet::CLUSTER, cluster), (EndpointSet::LOCAL, local)] {
        let Some(block) = block.filter(|block| block.count() > 0 && all.blocks.claim(*block))
        else {
            continue;
        };
        all.slots
            .ensure(block.first(), block.count())
            .map_err(failed("map", maps::SLOTS))?;
        let state = A::state_mut(port);
        let place = if set == EndpointSet::LOCAL {
            &mut state.local
        } else {
            &mut state.cluster
        };
        *place = block;
    }
    // What a record leads to beyond that is nobody's, and may be given to another service.
    let state = A::state(port);
    for id in &state.frontends {
        point_to_blocks(A::maps(all), *id, state);
    }
    Ok(())
}
