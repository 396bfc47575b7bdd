// SPDX-License-Identifier: Apache-2.0 OR MIT
//! First half of an apply: everything that a service's change needs is reserved, or nothing is. Called by
//! `apply`; `commit` uses what was reserved.

use ipnet::IpNet;
use proxy_common::{
    BackendId, Block, EndpointSet, FrontendKey, FrontendKind, RecordId, ServiceFlags, ServiceId,
    maps,
};

use super::{
    change::{BlockChange, FamilyChange, GuardChange, PortChange, Refusal, ServiceChange, Want},
    commit::Round,
    delta::{Current, CurrentFrontend, diff},
    state::{FamilyMaps, FamilyState, Maps, PortState, ServiceState, Stored},
};
use crate::{
    datapath::maps::family::Family,
    plan::{BackendPlan, PortPlan, ServicePlan},
};

/// What has been reserved so far, to be given back when the rest cannot be had.
#[derive(Default)]
struct Taken {
    services: Vec<u32>,
    records_v4: Vec<u32>,
    records_v6: Vec<u32>,
    backends_v4: Vec<u32>,
    backends_v6: Vec<u32>,
    blocks: Vec<Block>,
    frontends: [u32; 2],
    sources: [u32; 2],
    want: Option<Want>,
}

impl Taken {
    fn give_back(self, maps: &mut Maps) {
        let release = |ids: Vec<u32>, pool: &mut super::ids::IdPool| {
            ids.into_iter().for_each(|id| pool.release(id));
        };
        release(self.services, &mut maps.service_ids);
        release(self.records_v4, &mut maps.v4.record_ids);
        release(self.records_v6, &mut maps.v6.record_ids);
        release(self.backends_v4, &mut maps.v4.backend_ids);
        release(self.backends_v6, &mut maps.v6.backend_ids);
        self.blocks
            .into_iter()
            .for_each(|block| maps.blocks.release(block));
    }
}

/// The lists of one family in [`Taken`]; a position stands for the family in its arrays.
fn taken<A: Family>(taken: &mut Taken) -> (usize, &mut Vec<u32>, &mut Vec<u32>) {
    if A::BITS == 32 {
        (0, &mut taken.records_v4, &mut taken.backends_v4)
    } else {
        (1, &mut taken.records_v6, &mut taken.backends_v6)
    }
}

/// A source list as it is compared and stored.
pub(crate) fn normal_ranges(ranges: &[IpNet]) -> Vec<IpNet> {
    let mut ranges: Vec<_> = ranges.iter().map(IpNet::trunc).collect();
    ranges.sort();
    ranges.dedup();
    ranges
}

/// Position of the port in the state that a planned port continues.
pub(crate) fn find_port(state: &ServiceState, plan: &PortPlan) -> Option<usize> {
    state
        .ports
        .iter()
        .position(|port| port.name == plan.name && port.protocol == plan.protocol)
}

/// Reserves everything that `plan` needs beyond `state`, or nothing.
pub(crate) fn prepare<'a>(
    maps: &mut Maps,
    state: &ServiceState,
    plan: &'a ServicePlan,
    round: &Round,
    want: Want,
) -> Result<ServiceChange<'a>, Refusal> {
    let mut taken = Taken {
        want: Some(want),
        ..Taken::default()
    };
    let change = reserve(maps, state, plan, round, &mut taken);
    if change.is_err() {
        taken.give_back(maps);
    }
    change
}

fn reserve<'a>(
    maps: &mut Maps,
    state: &ServiceState,
    plan: &'a ServicePlan,
    round: &Round,
    taken: &mut Taken,
) -> Result<ServiceChange<'a>, Refusal> {
    let mut ports: Vec<PortChange<'a>> = Vec::with_capacity(plan.ports.len());
    for port in &plan.ports {
        // Two ports of one name cannot both continue the same one.
        let existing = find_port(state, port)
            .filter(|at| ports.iter().all(|other| other.existing != Some(*at)));
        let old = existing.map(|at| &state.ports[at]);
        let id = match old {
            Some(old) => old.id,
            None => reserve_service(maps, taken)?,
        };
        ports.push(PortChange {
            plan: port,
            id,
            existing,
            source_ranges: reserve_sources(maps, old, port, round, taken)?,
            v4: reserve_family(maps, old, port, round, taken)?,
            v6: reserve_family(maps, old, port, round, taken)?,
        });
    }
    let first = ports.first().map(|port| port.id);
    Ok(ServiceChange {
        guards_v4: reserve_guards(maps, state, plan, first, round, taken)?,
        guards_v6: reserve_guards(maps, state, plan, first, round, taken)?,
        ports,
    })
}

fn reserve_service(maps: &mut Maps, taken: &mut Taken) -> Result<ServiceId, Refusal> {
    let id = maps
        .service_ids
        .allocate_after(maps.last_service_id)
        .ok_or_else(|| Refusal::Full {
            map: maps::NAMES,
            capacity: maps.names.capacity(),
            key: "frontends",
            detail: String::new(),
        })?;
    maps.last_service_id = id;
    taken.services.push(id);
    Ok(ServiceId(id))
}

fn reserve_sources(
    maps: &Maps,
    old: Option<&PortState>,
    plan: &PortPlan,
    round: &Round,
    taken: &mut Taken,
) -> Result<Vec<IpNet>, Refusal> {
    let ranges = normal_ranges(&plan.source_ranges);
    let old = old.map_or(&[][..], |old| &old.source_ranges);
    for range in ranges.iter().filter(|range| !old.contains(range)) {
        let (at, count, map, pending, capacity) = match range {
            IpNet::V4(_) => (
                0,
                maps.v4.source_count,
                maps::SOURCE_RANGES_V4,
                round.v4.new_sources(),
                maps.v4.sources.capacity(),
            ),
            IpNet::V6(_) => (
                1,
                maps.v6.source_count,
                maps::SOURCE_RANGES_V6,
                round.v6.new_sources(),
                maps.v6.sources.capacity(),
            ),
        };
        taken.sources[at] += 1;
        if count + pending + taken.sources[at] > capacity {
            return Err(Refusal::Full {
                map,
                capacity,
                key: "sourceRanges",
                detail: String::new(),
            });
        }
    }
    Ok(ranges)
}

/// What one family of a service port is in the maps now.
pub(crate) fn current<A: Family>(maps: &FamilyMaps<A>, state: &FamilyState) -> Current<A> {
    Current {
        frontends: state
            .frontends
            .iter()
            .map(|record| {
                let stored = maps.records.load(record.0);
                CurrentFrontend {
                    record: *record,
                    key: stored.key,
                    flags: stored.flags,
                    affinity_timeout: stored.affinity_timeout,
                    reachable: maps.index.get(&stored.key) == Some(record),
                }
            })
            .collect(),
        backends: state
            .backends
            .iter()
            .map(|id| {
                let stored = maps.backends.load(id.0);
                let plan = BackendPlan {
                    address: stored.address,
                    port: stored.port,
                    sets: stored.sets,
                };
                (*id, plan)
            })
            .collect(),
    }
}

fn reserve_family<A: Stored>(
    maps: &mut Maps,
    old: Option<&PortState>,
    plan: &PortPlan,
    round: &Round,
    taken_all: &mut Taken,
) -> Result<FamilyChange<A>, Refusal> {
    let empty = FamilyState::default();
    let state = old.map_or(&empty, A::state);
    let wanted = A::of_port(plan);
    let delta = diff(
        &current(A::maps(maps), state),
        wanted,
        plan.protocol,
        plan.affinity_timeout,
    );
    let records = reserve_records(
        maps,
        delta
            .new_frontends
            .iter()
            .map(|(frontend, _)| super::delta::key_of(frontend, plan.protocol)),
        round,
        taken_all,
    )?;
    let mut backends = Vec::with_capacity(delta.backends.len());
    for (id, backend) in &delta.backends {
        let new = id.is_none();
        let id = match id {
            Some(id) => *id,
            None => reserve_backend::<A>(maps, taken_all)?,
        };
        backends.push((id, *backend, new));
    }
    let block = |set| {
        // A set that no frontend offers needs no slots.
        let offered = wanted.frontends.iter().any(|frontend| {
            [false, true]
                .map(|external| frontend.flags.set_of_block(external))
                .contains(&set)
        });
        let slots: Vec<u32> = backends
            .iter()
            .filter(|(_, backend, _)| offered && backend.sets.intersects(set))
            .map(|(id, _, _)| id.0)
            .collect();
        (state.block(set), slots)
    };
    let (cluster, local) = (block(EndpointSet::CLUSTER), block(EndpointSet::LOCAL));
    Ok(FamilyChange {
        cluster: reserve_block(maps, cluster, taken_all)?,
        local: reserve_block(maps, local, taken_all)?,
        delta,
        backends,
        records,
    })
}

fn reserve_records<A: Stored>(
    maps: &mut Maps,
    keys: impl Iterator<Item = FrontendKey<A>>,
    round: &Round,
    taken_all: &mut Taken,
) -> Result<Vec<RecordId>, Refusal> {
    let (family, taken_records, _) = taken::<A>(taken_all);
    let mut records = Vec::new();
    let mut added = 0;
    let maps = A::maps_mut(maps);
    for key in keys {
        let id = maps.record_ids.allocate().ok_or_else(|| Refusal::Full {
            map: A::RECORDS,
            capacity: maps.records.capacity(),
            key: "records",
            detail: String::new(),
        })?;
        taken_records.push(id);
        maps.records
            .ensure(id, 1)
            .map_err(|error| Refusal::Unmapped {
                map: A::RECORDS,
                error,
            })?;
        records.push(RecordId(id));
        added += u32::from(!maps.index.contains_key(&key));
    }
    taken_all.frontends[family] += added;
    let pending = A::round(round).new_frontends();
    if added > 0
        && maps.index.len() as u32 + pending + taken_all.frontends[family]
            > maps.frontends.capacity()
    {
        return Err(Refusal::Full {
            map: A::FRONTENDS,
            capacity: maps.frontends.capacity(),
            key: "frontends",
            detail: String::new(),
        });
    }
    Ok(records)
}

fn reserve_backend<A: Stored>(
    maps: &mut Maps,
    taken_all: &mut Taken,
) -> Result<BackendId, Refusal> {
    let (_, _, taken) = taken::<A>(taken_all);
    let maps = A::maps_mut(maps);
    let id = maps.backend_ids.allocate().ok_or_else(|| Refusal::Full {
        map: A::BACKENDS,
        capacity: maps.backends.capacity(),
        key: "backends",
        detail: String::new(),
    })?;
    taken.push(id);
    maps.backends
        .ensure(id, 1)
        .map_err(|error| Refusal::Unmapped {
            map: A::BACKENDS,
            error,
        })?;
    Ok(BackendId(id))
}

fn reserve_block(
    maps: &mut Maps,
    (old, slots): (Block, Vec<u32>),
    taken: &mut Taken,
) -> Result<BlockChange, Refusal> {
    let same = old.count() as usize == slots.len()
        && slots
            .iter()
            .zip(old.first()..)
            .all(|(id, at)| maps.slots.load(at) == *id);
    if same {
        return Ok(BlockChange::Keep);
    }
    let count = slots.len() as u32;
    let Some(block) = maps.blocks.allocate(count) else {
        let part = shrunk(maps, old, &slots);
        let is_all = matches!(&part, BlockChange::Shrink { block, .. } if block.count() == count);
        if is_all || taken.want == Some(Want::WhatFits) {
            return Ok(part);
        }
        return Err(Refusal::Full {
            map: maps::SLOTS,
            capacity: maps.slots.capacity(),
            key: "slots",
            detail: format!(
                "; {count} in a row are needed, {} are free, {} in the longest row",
                maps.blocks.free(),
                maps.blocks.longest()
            ),
        });
    };
    taken.blocks.push(block);
    maps.slots
        .ensure(block.first(), block.count())
        .map_err(|error| Refusal::Unmapped {
            map: maps::SLOTS,
            error,
        })?;
    Ok(BlockChange::Replace { block, slots })
}

/// The longest part of a block that holds nothing but what is still wanted.
fn shrunk(maps: &Maps, old: Block, wanted: &[u32]) -> BlockChange {
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

/// The affinity timeout that a port's frontends have now.
pub(crate) fn standing_timeout(maps: &Maps, port: &PortState) -> Option<u32> {
    let v4 = port.v4.frontends.first();
    let v6 = port.v6.frontends.first();
    v4.map(|id| maps.v4.records.load(id.0).affinity_timeout)
        .or_else(|| v6.map(|id| maps.v6.records.load(id.0).affinity_timeout))
}

/// Flags of the record that rejects a cluster IP's unserved ports.
pub(crate) const GUARD: ServiceFlags = ServiceFlags::new(FrontendKind::Unserved);

fn reserve_guards<A: Stored>(
    maps: &mut Maps,
    state: &ServiceState,
    plan: &ServicePlan,
    first: Option<ServiceId>,
    round: &Round,
    taken: &mut Taken,
) -> Result<GuardChange<A>, Refusal> {
    // A service without any port has no id to guard under, and nothing to guard.
    let Some(first) = first else {
        return Ok(GuardChange {
            new: Vec::new(),
            kept: Vec::new(),
        });
    };
    let family = A::maps(maps);
    let standing: std::collections::HashMap<A, RecordId> = A::guards(state)
        .iter()
        .map(|id| (*id, family.records.load(id.0)))
        .filter(|(id, record)| family.index.get(&record.key) == Some(id) && record.service == first)
        .map(|(id, record)| (record.key.address, id))
        .collect();
    let mut addresses = A::guarded(plan).to_vec();
    addresses.sort();
    addresses.dedup();
    let (kept, new): (Vec<A>, Vec<A>) = addresses
        .into_iter()
        .partition(|address| standing.contains_key(address));
    let records = reserve_records(
        maps,
        new.iter().map(|address| FrontendKey::unserved(*address)),
        round,
        taken,
    )?;
    Ok(GuardChange {
        new: new.into_iter().zip(records).collect(),
        kept: kept
            .iter()
            .filter_map(|address| standing.get(address).copied())
            .collect(),
    })
}
