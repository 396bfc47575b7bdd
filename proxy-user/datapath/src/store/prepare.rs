// SPDX-License-Identifier: Apache-2.0 OR MIT
//! First part of an apply: determines which ids and slots a service's change needs, and reserves
//! all of them or none. Also reduces a plan to the part that needs no new elements, for when a map
//! is full. Called by `apply`; `commit` then writes the change.

use std::collections::HashMap;

use control::{
    apply::Refusal,
    plan::{BackendPlan, FamilyPlan, FrontendPlan, PortPlan, ServicePlan},
};
use ipnet::IpNet;
use proxy_common::{
    Addr, BackendId, EndpointSet, ServiceFlags, V4, V6,
    select::{maglev, weights},
};

use super::{
    change::{Batches, FamilyChange, PortChange, Quota, ServiceChange, Want},
    delta::{diff, key_of},
    guards::prepare_guards,
    maps::Maps,
    reserve::Reserved,
    state::{FamilyState, PortState, ServiceState, Stored, normal_ranges},
};

/// Reserves all ids and slots that `plan` needs and `state` lacks, or none, and returns the change.
/// `room` says how far it may fill the maps. `batches` has what services before this one will
/// write.
pub(super) fn prepare<'a>(
    maps: &mut Maps,
    state: &ServiceState,
    plan: &'a ServicePlan,
    batches: &Batches,
    want: Want,
    room: Quota,
) -> Result<ServiceChange<'a>, Refusal> {
    let mut reserved = Reserved::new(want, room, batches);
    let change = prepare_service(maps, state, plan, &mut reserved);
    if change.is_err() {
        reserved.give_back(maps);
    }
    change
}

fn prepare_service<'a>(
    maps: &mut Maps,
    state: &ServiceState,
    plan: &'a ServicePlan,
    reserved: &mut Reserved<'_>,
) -> Result<ServiceChange<'a>, Refusal> {
    let mut ports: Vec<PortChange<'a>> = Vec::with_capacity(plan.ports.len());
    let mut positions = state.positions();
    for port in &plan.ports {
        // If the plan has two ports with one name, only the first one continues the existing port.
        let existing = positions.remove(&(&*port.name, port.protocol));
        let old = existing.map(|at| &state.ports[at]);
        let id = match old {
            Some(old) => old.id,
            None => reserved.service(maps)?,
        };
        ports.push(PortChange {
            plan: port,
            id,
            existing,
            source_ranges: prepare_sources(maps, old, port, reserved)?,
            v4: prepare_family(maps, old, port, reserved)?,
            v6: prepare_family(maps, old, port, reserved)?,
        });
    }
    let first = ports.first().map(|port| port.id);
    Ok(ServiceChange {
        guards_v4: prepare_guards(maps, state, plan, first, reserved)?,
        guards_v6: prepare_guards(maps, state, plan, first, reserved)?,
        ports,
    })
}

fn prepare_sources(
    maps: &Maps,
    old: Option<&PortState>,
    plan: &PortPlan,
    reserved: &mut Reserved<'_>,
) -> Result<Vec<IpNet>, Refusal> {
    let ranges = normal_ranges(&plan.source_ranges);
    let old = old.map_or(&[][..], |old| &old.source_ranges);
    for range in ranges
        .iter()
        .filter(|range| old.binary_search(range).is_err())
    {
        reserved.source::<V4>(maps, range)?;
        reserved.source::<V6>(maps, range)?;
    }
    Ok(ranges)
}

fn prepare_family<A: Stored>(
    maps: &mut Maps,
    old: Option<&PortState>,
    plan: &PortPlan,
    reserved: &mut Reserved<'_>,
) -> Result<FamilyChange<A>, Refusal> {
    let empty = FamilyState::default();
    let state = old.map_or(&empty, |old| &old.families[A::AT]);
    let wanted = A::of_port(plan);
    let delta = diff(
        &A::maps(maps).current(state),
        wanted,
        plan.protocol,
        plan.affinity_timeout,
    );
    let keys = delta
        .new_frontends
        .iter()
        .map(|(frontend, _)| key_of(frontend, plan.protocol));
    let records = reserved.records(maps, keys)?;
    let mut backends = Vec::with_capacity(delta.backends.len());
    for (id, backend) in &delta.backends {
        let new = id.is_none();
        let id = match id {
            Some(id) => *id,
            None => reserved.backend::<A>(maps)?,
        };
        backends.push((id, *backend, new));
    }
    let is_maglev = wanted
        .frontends
        .iter()
        .any(|frontend| frontend.flags.has(ServiceFlags::MAGLEV));
    let mut block = |set, old| {
        // A set that no frontend uses needs no slots.
        let offered = wanted.frontends.iter().any(|frontend| {
            [false, true]
                .map(|external| frontend.flags.set_of_block(external))
                .contains(&set)
        });
        let members = backends
            .iter()
            .filter(|(_, backend, _)| offered && backend.sets.intersects(set));
        let members: Vec<_> = members.map(|(id, backend, _)| (*id, backend)).collect();
        let weights: Vec<_> = members.iter().map(|(_, at)| at.weight_in(set)).collect();
        let with_weight = members.iter().zip(&weights);
        let with_weight = with_weight.filter(|(_, weight)| **weight > 0);
        let ids: Vec<_> = with_weight.map(|((id, _), _)| id.0).collect();
        let slots = slots_of(&members, &weights, is_maglev);
        if slots == ids {
            reserved.block(maps, old, ids)
        } else {
            reserved.table(maps, old, slots, ids)
        }
    };
    let cluster = block(EndpointSet::CLUSTER, state.cluster)?;
    let local = block(EndpointSet::LOCAL, state.local)?;
    Ok(FamilyChange {
        cluster,
        local,
        delta,
        backends,
        records,
    })
}

/// Returns the slots of a block for these backends, as ids: each has its share by its weight.
fn slots_of<A: Addr>(
    members: &[(BackendId, &BackendPlan<A>)],
    weights: &[u32],
    is_maglev: bool,
) -> Vec<u32> {
    let owners = if is_maglev {
        let ends = members.iter().map(|(_, at)| (at.address, at.port));
        maglev::weighted(&ends.collect::<Vec<_>>(), weights)
    } else {
        weights::list(weights)
    };
    let id = |owner: u32| members[owner as usize].0.0;
    owners.into_iter().map(id).collect()
}

/// Returns the plan without its new ports, frontends, backends, source ranges and guards.
pub(super) fn reduced(maps: &Maps, state: &ServiceState, plan: &ServicePlan) -> ServicePlan {
    let mut reduced = ServicePlan {
        health_check: plan.health_check,
        ..ServicePlan::default()
    };
    let positions = state.positions();
    for port in &plan.ports {
        let at = positions.get(&(&*port.name, port.protocol));
        let Some(old) = at.and_then(|at| state.ports.get(*at)) else {
            continue;
        };
        let (v4, v6) = (family::<V4>(maps, old, port), family::<V6>(maps, old, port));
        let timeout = current_timeout(maps, old).unwrap_or(port.affinity_timeout);
        reduced.ports.push(PortPlan {
            affinity_timeout: timeout,
            source_ranges: port
                .source_ranges
                .iter()
                .filter(|range| old.source_ranges.binary_search(&range.trunc()).is_ok())
                .copied()
                .collect(),
            v4,
            v6,
            ..port.clone()
        });
    }
    reduced.guarded_v4 = kept(maps, state, &plan.guarded_v4);
    reduced.guarded_v6 = kept(maps, state, &plan.guarded_v6);
    reduced
}

/// Returns the plan of one address family of a port without new backends and frontends.
fn family<A: Stored>(maps: &Maps, old: &PortState, plan: &PortPlan) -> FamilyPlan<A> {
    let current = A::maps(maps).current(&old.families[A::AT]);
    let mut wanted = A::of_port(plan).clone();
    wanted.backends.retain(|backend| {
        let endpoint = (backend.address, backend.port);
        let known = &current.backends;
        known
            .binary_search_by_key(&endpoint, |(_, old)| (old.address, old.port))
            .is_ok()
    });
    let current_flags = current.frontends.iter().map(|old| (old.key, old.flags));
    let current_flags: HashMap<_, _> = current_flags.collect();
    // The frontends keep their old flags: a changed frontend would need a new record.
    wanted.frontends = wanted
        .frontends
        .iter()
        .filter_map(|frontend| {
            let key = key_of(frontend, plan.protocol);
            Some(FrontendPlan {
                flags: *current_flags.get(&key)?,
                ..*frontend
            })
        })
        .collect();
    wanted
}

/// Returns those of the wanted cluster IPs that have a guard already.
fn kept<A: Stored>(maps: &Maps, state: &ServiceState, wanted: &[A]) -> Vec<A> {
    let records = &A::maps(maps).records;
    let current: Vec<A> = state.guards[A::AT]
        .iter()
        .map(|id| records.load(id.0).key.address)
        .collect();
    wanted
        .iter()
        .filter(|guard| current.contains(guard))
        .copied()
        .collect()
}

/// Returns the affinity timeout in seconds that a port's frontends have in the maps now; `None` if
/// it has no frontends.
fn current_timeout(maps: &Maps, port: &PortState) -> Option<u32> {
    fn of_family<A: Stored>(maps: &Maps, port: &PortState) -> Option<u32> {
        let record = port.families[A::AT].frontends.first()?;
        Some(A::maps(maps).records.load(record.0).affinity_timeout)
    }
    of_family::<V4>(maps, port).or_else(|| of_family::<V6>(maps, port))
}
