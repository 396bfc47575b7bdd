// SPDX-License-Identifier: Apache-2.0 OR MIT
//! First part of an apply: determines which ids and slots a service's change needs, and reserves
//! all of them or none. Called by `apply`; `commit` then writes the change.

use control::{
    apply::Refusal,
    plan::{BackendPlan, PortPlan, ServicePlan},
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
    let mut reserved = Reserved::new(want, room);
    let change = prepare_service(maps, state, plan, batches, &mut reserved);
    if change.is_err() {
        reserved.give_back(maps);
    }
    change
}

fn prepare_service<'a>(
    maps: &mut Maps,
    state: &ServiceState,
    plan: &'a ServicePlan,
    batches: &Batches,
    reserved: &mut Reserved,
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
            source_ranges: prepare_sources(maps, old, port, batches, reserved)?,
            v4: prepare_family(maps, old, port, batches, reserved)?,
            v6: prepare_family(maps, old, port, batches, reserved)?,
        });
    }
    let first = ports.first().map(|port| port.id);
    Ok(ServiceChange {
        guards_v4: prepare_guards(maps, state, plan, first, batches, reserved)?,
        guards_v6: prepare_guards(maps, state, plan, first, batches, reserved)?,
        ports,
    })
}

fn prepare_sources(
    maps: &Maps,
    old: Option<&PortState>,
    plan: &PortPlan,
    batches: &Batches,
    reserved: &mut Reserved,
) -> Result<Vec<IpNet>, Refusal> {
    let ranges = normal_ranges(&plan.source_ranges);
    let old = old.map_or(&[][..], |old| &old.source_ranges);
    for range in ranges
        .iter()
        .filter(|range| old.binary_search(range).is_err())
    {
        reserved.source::<V4>(maps, range, batches)?;
        reserved.source::<V6>(maps, range, batches)?;
    }
    Ok(ranges)
}

fn prepare_family<A: Stored>(
    maps: &mut Maps,
    old: Option<&PortState>,
    plan: &PortPlan,
    batches: &Batches,
    reserved: &mut Reserved,
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
    let records = reserved.records(maps, keys, batches)?;
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
