// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Brings the maps in line with plans: prepare and commit each service, then the batches for all of them,
//! then the ids that a grace period sets free. Called by `Datapath`.

use std::{
    collections::{HashMap, VecDeque},
    mem::offset_of,
};

use proxy_common::{Backend, BackendId, Block, RecordId, ServiceId, V4, V6, maps};

use super::{
    change::{Refusal, Want},
    commit::{FamilyRound, Round, commit, empty_blocks, retire_backend},
    grace::Grace,
    prepare::{find_port, prepare},
    result::ApplyReport,
    state::{Maps, ServiceState, Stored},
};
use crate::{
    datapath::{maps::arrays::MappedArray, node::SettingsCell},
    plan::{FamilyPlan, ObjectName, PortPlan, ServicePlan, Warning},
};

/// Ids that readers may still be looking at.
#[derive(Default)]
struct Garbage {
    records_v4: Vec<RecordId>,
    records_v6: Vec<RecordId>,
    backends_v4: Vec<BackendId>,
    backends_v6: Vec<BackendId>,
    blocks: Vec<Block>,
    services: Vec<ServiceId>,
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

/// The published services.
pub(crate) struct Store {
    maps: Maps,
    services: HashMap<ObjectName, ServiceState>,
    grace: Grace,
    garbage: VecDeque<(u64, Garbage)>,
}

impl Store {
    pub(crate) fn new(
        maps: Maps,
        services: HashMap<ObjectName, ServiceState>,
        grace: Grace,
    ) -> Self {
        Self {
            maps,
            services,
            grace,
            garbage: VecDeque::new(),
        }
    }
    pub(crate) fn maps(&self) -> &Maps {
        &self.maps
    }
    pub(crate) fn port_filter(&self) -> &MappedArray<u64> {
        &self.maps.ports
    }
    /// Names of all published services.
    pub(crate) fn names(&self) -> impl Iterator<Item = &ObjectName> {
        self.services.keys()
    }

    /// Publishes the changes; see [`super::Datapath::apply`].
    pub(crate) fn apply(
        &mut self,
        changes: &[(ObjectName, ServicePlan)],
        settings: &mut SettingsCell,
    ) -> ApplyReport {
        self.collect();
        let mut round = Round::default();
        let mut errors = Vec::new();
        for (at, (name, plan)) in changes.iter().enumerate() {
            let mut state = self.services.remove(name).unwrap_or_default();
            let mut prepared = prepare(&mut self.maps, &state, plan, &round, Want::Whole);
            if let Err(Refusal::Full { .. }) = &prepared
                && self.collect_all()
            {
                prepared = prepare(&mut self.maps, &state, plan, &round, Want::Whole);
            }
            match prepared {
                Ok(change) => commit(&mut self.maps, &mut state, name, change, at, &mut round),
                Err(refusal) => {
                    errors.push(warning(name, &refusal));
                    // What needs nothing new is done all the same, endpoints that are gone above all.
                    let reduced = reduced(&self.maps, &state, plan);
                    if let Ok(change) =
                        prepare(&mut self.maps, &state, &reduced, &round, Want::WhatFits)
                    {
                        commit(&mut self.maps, &mut state, name, change, at, &mut round);
                    }
                }
            }
            if !state.ports.is_empty() {
                self.services.insert(name.clone(), state);
            }
        }
        let udp_lost = round.udp_lost;
        let written = self.publish(round, changes, settings, &mut errors);
        ApplyReport {
            written,
            errors,
            udp_lost,
        }
    }

    fn publish(
        &mut self,
        mut round: Round,
        changes: &[(ObjectName, ServicePlan)],
        settings: &mut SettingsCell,
        errors: &mut Vec<Warning>,
    ) -> usize {
        let mut garbage = Garbage {
            blocks: std::mem::take(&mut round.freed_blocks),
            ..Garbage::default()
        };
        garbage.blocks.retain(|block| block.count() > 0);
        let mut written = round.written;

        match settings.cover(&round.v4.cluster_ips, &round.v6.cluster_ips) {
            Ok(stored) => written += usize::from(stored),
            Err(error) => errors.push(Warning {
                object: format!("map {}", maps::SETTINGS),
                reason: format!(
                    "the range of cluster IPs cannot be stored ({error}): connections that lost their \
                     flow hang instead of being reset; it is tried again"
                ),
            }),
        }
        written += self.publish_names(&round, changes, errors);
        written += self.publish_sources::<V4>(&round.v4, changes, errors);
        written += self.publish_sources::<V6>(&round.v6, changes, errors);
        garbage.records_v4 = self.publish_frontends(&round.v4, changes, errors);
        garbage.records_v6 = self.publish_frontends(&round.v6, changes, errors);
        written += round.v4.frontends.len() + round.v6.frontends.len();
        written += self.remove_frontends(&round.v4, &mut garbage.records_v4);
        written += self.remove_frontends(&round.v6, &mut garbage.records_v6);
        written += self.remove_sources(&round.v4) + self.remove_sources(&round.v6);
        let ids: Vec<u32> = round.removed_services.iter().map(|id| id.0).collect();
        for refused in self.maps.names.delete_all(&ids) {
            tracing::warn!(map = maps::NAMES, id = ids[refused.position], error = %refused.error, "remove");
        }
        written += ids.len();

        for id in &round.v4.gone_backends {
            retire_backend(&self.maps.v4, *id);
        }
        for id in &round.v6.gone_backends {
            retire_backend(&self.maps.v6, *id);
        }
        written += round.v4.gone_backends.len() + round.v6.gone_backends.len();
        garbage.backends_v4 = round.v4.gone_backends;
        garbage.backends_v6 = round.v6.gone_backends;
        garbage.services = round.removed_services;
        if !garbage.is_empty() {
            self.garbage.push_back((self.grace.request(), garbage));
        }
        written
    }

    fn publish_names(
        &mut self,
        round: &Round,
        changes: &[(ObjectName, ServicePlan)],
        errors: &mut Vec<Warning>,
    ) -> usize {
        let keys: Vec<_> = round.names.iter().map(|(id, _, _)| *id).collect();
        let values: Vec<_> = round.names.iter().map(|(_, name, _)| *name).collect();
        for refused in self.maps.names.update_all(&keys, &values) {
            let name = &changes[round.names[refused.position].2].0;
            errors.push(kernel_refusal(name, maps::NAMES, &refused.error));
            // Forgotten, so that the next apply writes it again.
            let state = self.services.get_mut(name).map(|state| &mut state.ports);
            for port in state.into_iter().flatten() {
                if port.id.0 == keys[refused.position] {
                    port.port = proxy_common::Port::ANY;
                }
            }
        }
        keys.len()
    }

    fn publish_sources<A: Stored>(
        &mut self,
        round: &FamilyRound<A>,
        changes: &[(ObjectName, ServicePlan)],
        errors: &mut Vec<Warning>,
    ) -> usize {
        let keys: Vec<_> = round.sources.iter().map(|source| source.key).collect();
        let refused = A::maps(&self.maps)
            .sources
            .update_all(&keys, &vec![1; keys.len()]);
        A::maps_mut(&mut self.maps).source_count += (keys.len() - refused.len()) as u32;
        for refused in refused {
            let name = &changes[round.sources[refused.position].change].0;
            errors.push(kernel_refusal(name, A::SOURCE_RANGES, &refused.error));
            let key = &keys[refused.position];
            let state = self.services.get_mut(name).map(|state| &mut state.ports);
            for port in state.into_iter().flatten() {
                if port.id == key.data.service {
                    port.source_ranges
                        .retain(|range| A::source_range(port.id, range) != Some(*key));
                }
            }
        }
        keys.len()
    }

    /// Publishes frontends and returns the records that are out of reach by that.
    fn publish_frontends<A: Stored>(
        &mut self,
        round: &FamilyRound<A>,
        changes: &[(ObjectName, ServicePlan)],
        errors: &mut Vec<Warning>,
    ) -> Vec<RecordId> {
        let keys: Vec<_> = round.frontends.iter().map(|new| new.key).collect();
        let values: Vec<_> = round.frontends.iter().map(|new| new.record.0).collect();
        let refused = A::maps(&self.maps).frontends.update_all(&keys, &values);
        let mut refused = refused.into_iter().peekable();
        let mut unreachable = Vec::new();
        for (position, new) in round.frontends.iter().enumerate() {
            let index = &mut A::maps_mut(&mut self.maps).index;
            let Some(refused) = refused.next_if(|refused| refused.position == position) else {
                index.insert(new.key, new.record);
                unreachable.extend(new.replaces);
                continue;
            };
            let name = &changes[new.change].0;
            errors.push(kernel_refusal(name, A::FRONTENDS, &refused.error));
            // The old record stays where it still is what the key leads to.
            let kept = new.replaces.filter(|old| index.get(&new.key) == Some(old));
            unreachable.extend(new.replaces.filter(|_| kept.is_none()));
            unreachable.push(new.record);
            if let Some(state) = self.services.get_mut(name) {
                replace_record::<A>(state, new.record, kept);
            }
        }
        unreachable
    }

    fn remove_frontends<A: Stored>(
        &mut self,
        round: &FamilyRound<A>,
        unreachable: &mut Vec<RecordId>,
    ) -> usize {
        let maps = A::maps_mut(&mut self.maps);
        // A key that another service has taken over meanwhile stays.
        let (ours, others): (Vec<_>, Vec<_>) = round
            .removed
            .iter()
            .partition(|(key, record)| maps.index.get(key) == Some(record));
        unreachable.extend(others.into_iter().map(|(_, record)| record));
        let keys: Vec<_> = ours.iter().map(|(key, _)| *key).collect();
        let refused = maps.frontends.delete_all(&keys);
        let mut refused = refused.into_iter().peekable();
        for (position, (key, record)) in ours.iter().enumerate() {
            if let Some(refused) = refused.next_if(|refused| refused.position == position) {
                // Its record is never used again, and leads nowhere.
                tracing::warn!(map = A::FRONTENDS, ?key, error = %refused.error, "remove");
                empty_blocks(maps, *record);
            } else {
                unreachable.push(*record);
            }
            maps.index.remove(key);
        }
        keys.len()
    }

    fn remove_sources<A: Stored>(&mut self, round: &FamilyRound<A>) -> usize {
        let maps = A::maps_mut(&mut self.maps);
        let refused = maps.sources.delete_all(&round.removed_sources);
        let removed = round.removed_sources.len() - refused.len();
        for refused in refused {
            let key = &round.removed_sources[refused.position];
            tracing::warn!(map = A::SOURCE_RANGES, ?key, error = %refused.error, "remove");
        }
        maps.source_count = maps.source_count.saturating_sub(removed as u32);
        removed
    }

    /// Takes back the ids that no reader can be looking at any more.
    fn collect(&mut self) {
        let completed = self.grace.completed();
        while let Some((_, garbage)) = self
            .garbage
            .pop_front_if(|(number, _)| *number <= completed)
        {
            let maps = &mut self.maps;
            free::<V4>(maps, garbage.records_v4, garbage.backends_v4);
            free::<V6>(maps, garbage.records_v6, garbage.backends_v6);
            garbage
                .blocks
                .into_iter()
                .for_each(|block| maps.blocks.release(block));
            garbage
                .services
                .into_iter()
                .for_each(|id| maps.service_ids.release(id.0));
        }
    }

    /// Waits for all ids to come back; whether any was waited for.
    fn collect_all(&mut self) -> bool {
        let Some((number, _)) = self.garbage.back() else {
            return false;
        };
        let waited = self.grace.wait(*number);
        self.collect();
        waited
    }
}

impl Drop for Store {
    /// Leaves no backend behind that only looks used.
    fn drop(&mut self) {
        self.collect_all();
    }
}

fn free<A: Stored>(maps: &mut Maps, records: Vec<RecordId>, backends: Vec<BackendId>) {
    let maps = A::maps_mut(maps);
    for id in records {
        maps.record_ids.release(id.0);
    }
    for id in backends {
        maps.backends
            .store_u32(id.0, offset_of!(Backend<A>, service), 0);
        maps.backend_ids.release(id.0);
    }
}

fn replace_record<A: Stored>(state: &mut ServiceState, record: RecordId, by: Option<RecordId>) {
    let lists = state
        .ports
        .iter_mut()
        .map(|port| &mut A::state_mut(port).frontends);
    for list in lists {
        if list.contains(&record) {
            list.retain(|id| *id != record);
            list.extend(by);
            return;
        }
    }
    let guards = A::guards_mut(state);
    guards.retain(|id| *id != record);
    guards.extend(by);
}

fn warning(name: &ObjectName, refusal: &Refusal) -> Warning {
    Warning {
        object: format!("Service {name}"),
        reason: refusal.to_string(),
    }
}

fn kernel_refusal(name: &ObjectName, map: &'static str, error: &std::io::Error) -> Warning {
    Warning {
        object: format!("Service {name}"),
        reason: format!(
            "not wholly published, the kernel refuses an element of the map {map} ({error}); it is tried again"
        ),
    }
}

/// The part of a plan that needs no new port, frontend or backend.
fn reduced(maps: &Maps, state: &ServiceState, plan: &ServicePlan) -> ServicePlan {
    fn family<A: Stored>(
        maps: &Maps,
        old: &super::state::PortState,
        plan: &PortPlan,
    ) -> FamilyPlan<A> {
        let current = super::prepare::current(A::maps(maps), A::state(old));
        let mut wanted = A::of_port(plan).clone();
        wanted.backends.retain(|backend| {
            current
                .backends
                .iter()
                .any(|(_, old)| (old.address, old.port) == (backend.address, backend.port))
        });
        // As they are: a changed frontend would need a new record.
        wanted.frontends = wanted
            .frontends
            .iter()
            .filter_map(|frontend| {
                let key = super::delta::key_of(frontend, plan.protocol);
                let old = current.frontends.iter().find(|old| old.key == key)?;
                Some(crate::plan::FrontendPlan {
                    flags: old.flags,
                    ..*frontend
                })
            })
            .collect();
        wanted
    }
    let mut reduced = ServicePlan {
        health_check: plan.health_check,
        ..ServicePlan::default()
    };
    for port in &plan.ports {
        let Some(old) = find_port(state, port).map(|at| &state.ports[at]) else {
            continue;
        };
        let (v4, v6) = (family::<V4>(maps, old, port), family::<V6>(maps, old, port));
        let timeout = super::prepare::standing_timeout(maps, old).unwrap_or(port.affinity_timeout);
        reduced.ports.push(PortPlan {
            affinity_timeout: timeout,
            source_ranges: port
                .source_ranges
                .iter()
                .filter(|range| old.source_ranges.contains(&range.trunc()))
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

/// The wanted cluster IPs that have their guard already.
fn kept<A: Stored>(maps: &Maps, state: &ServiceState, wanted: &[A]) -> Vec<A> {
    let records = &A::maps(maps).records;
    let standing: Vec<A> = A::guards(state)
        .iter()
        .map(|id| records.load(id.0).key.address)
        .collect();
    wanted
        .iter()
        .filter(|guard| standing.contains(guard))
        .copied()
        .collect()
}
