// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reduces a plan to the part that needs no new elements, for when a map is full. Called by
//! `apply`.

use std::collections::HashMap;

use control::plan::{FamilyPlan, FrontendPlan, PortPlan, ServicePlan};
use proxy_common::{V4, V6};

use super::{
    delta::key_of,
    maps::Maps,
    state::{PortState, ServiceState, Stored},
};

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
