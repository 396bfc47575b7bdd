// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Third part of an apply: writes the queued elements of hash maps of all services, in an order
//! that is safe for the programs that read them. Called by `apply`.
//!
//! The order: names and source ranges, frontends, removal of frontends and of what only these led
//! to, and last the backends that are gone.

use std::{
    collections::{HashMap, HashSet},
    io,
};

use control::{
    apply::{Affected, Failure, Refusal},
    object::ObjectName,
    plan::ServicePlan,
};
use proxy_common::{Port, RecordId, maps as names};

use super::{
    change::{Batches, FamilyBatches},
    garbage::Garbage,
    maps::Maps,
    state::{FamilyState, ServiceState, Stored},
};
use crate::node::SettingsCell;

/// Writes the queued elements of one call of `Store::apply`.
pub(super) struct Publisher<'a> {
    pub(super) maps: &'a mut Maps,
    pub(super) services: &'a mut HashMap<ObjectName, ServiceState>,
    pub(super) changes: &'a [(ObjectName, ServicePlan)],
    pub(super) failures: &'a mut Vec<Failure>,
}

impl Publisher<'_> {
    /// Writes everything. Returns how many elements were written, and the ids that no element leads
    /// to any more.
    pub(super) fn publish(
        mut self,
        batches: Batches,
        settings: &mut SettingsCell,
    ) -> (usize, Garbage) {
        let (v4, v6) = (&batches.v4, &batches.v6);
        let mut written = batches.written;
        match settings.cover(&v4.addresses, &v6.addresses) {
            Ok(stored) => written += usize::from(stored),
            Err(error) => self.failures.push(Failure {
                affected: Affected::All,
                reason: Refusal::AddressRanges { error },
            }),
        }
        written += self.publish_names(&batches);
        written += self.publish_sources(v4) + self.publish_sources(v6);
        let mut records_v4 = self.publish_frontends(v4);
        let mut records_v6 = self.publish_frontends(v6);
        written += v4.frontends.len() + v6.frontends.len();
        written += self.remove_frontends(v4, &mut records_v4);
        written += self.remove_frontends(v6, &mut records_v6);
        written += self.remove_sources(v4) + self.remove_sources(v6);
        written += self.remove_names(&batches);
        for id in &v4.gone_backends {
            self.maps.v4.retire_backend(*id);
        }
        for id in &v6.gone_backends {
            self.maps.v6.retire_backend(*id);
        }
        written += v4.gone_backends.len() + v6.gone_backends.len();
        let mut blocks = batches.freed_blocks;
        blocks.retain(|block| block.count() > 0);
        let garbage = Garbage {
            records: [records_v4, records_v6],
            backends: [batches.v4.gone_backends, batches.v6.gone_backends],
            blocks,
            services: batches.removed_services,
        };
        (written, garbage)
    }

    /// Adds a failure: the kernel refused an element of a service. `change` is the index of the
    /// service in the changes.
    fn refused(&mut self, change: usize, map: &'static str, error: io::Error) {
        let (name, _) = &self.changes[change];
        let reason = Refusal::Element { map, error };
        self.failures.push(Failure::of_service(name, reason));
    }

    /// Returns the state of each service with refused elements, with these elements. A service that
    /// was removed is left out.
    fn with_refused<T>(
        &mut self,
        refused: HashMap<usize, T>,
        mut change: impl FnMut(&mut ServiceState, T),
    ) {
        for (at, elements) in refused {
            let (name, _) = &self.changes[at];
            if let Some(state) = self.services.get_mut(name) {
                change(state, elements);
            }
        }
    }

    fn publish_names(&mut self, batches: &Batches) -> usize {
        let keys: Vec<_> = batches.names.iter().map(|(id, _, _)| *id).collect();
        let values: Vec<_> = batches.names.iter().map(|(_, name, _)| *name).collect();
        let mut lost: HashMap<_, HashSet<_>> = HashMap::new();
        for refused in self.maps.names.update_all(&keys, &values) {
            let (id, _, change) = batches.names[refused.position];
            self.refused(change, names::NAMES, refused.error);
            lost.entry(change).or_default().insert(id);
        }
        // Forgets the port's number, so that the next apply writes the name again.
        self.with_refused(lost, |state, ids| {
            let ports = state.ports.iter_mut();
            ports
                .filter(|port| ids.contains(&port.id.0))
                .for_each(|port| port.port = Port::ANY);
        });
        keys.len()
    }

    fn publish_sources<A: Stored>(&mut self, batches: &FamilyBatches<A>) -> usize {
        let keys: Vec<_> = batches.sources.iter().map(|source| source.key).collect();
        let refused = A::maps(self.maps)
            .sources
            .update_all(&keys, &vec![1; keys.len()]);
        A::maps_mut(self.maps).source_count += (keys.len() - refused.len()) as u32;
        let mut lost: HashMap<_, HashSet<_>> = HashMap::new();
        for refused in refused {
            let source = &batches.sources[refused.position];
            self.refused(source.change, A::SOURCE_RANGES, refused.error);
            lost.entry(source.change).or_default().insert(source.key);
        }
        // Forgets the range, so that the next apply writes it again.
        self.with_refused(lost, |state, keys| {
            for port in &mut state.ports {
                let is_lost = |key| keys.contains(&key);
                let (id, ranges) = (port.id, &mut port.source_ranges);
                ranges.retain(|range| !A::source_range(id, range).is_some_and(is_lost));
            }
        });
        keys.len()
    }

    /// Writes new frontends into their map; returns the records that no key leads to any more.
    fn publish_frontends<A: Stored>(&mut self, batches: &FamilyBatches<A>) -> Vec<RecordId> {
        let keys: Vec<_> = batches.frontends.iter().map(|new| new.key).collect();
        let values: Vec<_> = batches.frontends.iter().map(|new| new.record.0).collect();
        let refused = A::maps(self.maps).frontends.update_all(&keys, &values);
        let mut refused = refused.into_iter().peekable();
        let mut unreachable = Vec::new();
        let mut lost: HashMap<_, HashMap<_, _>> = HashMap::new();
        for (position, new) in batches.frontends.iter().enumerate() {
            let index = &mut A::maps_mut(self.maps).index;
            let Some(refused) = refused.next_if(|refused| refused.position == position) else {
                index.insert(new.key, new.record);
                unreachable.extend(new.replaces);
                continue;
            };
            // Keeps the old record if the key still leads to it.
            let kept = new.replaces.filter(|old| index.get(&new.key) == Some(old));
            unreachable.extend(new.replaces.filter(|_| kept.is_none()));
            unreachable.push(new.record);
            self.refused(new.change, A::FRONTENDS, refused.error);
            lost.entry(new.change).or_default().insert(new.record, kept);
        }
        self.with_refused(lost, |state, lost| replace_records::<A>(state, &lost));
        unreachable
    }

    fn remove_frontends<A: Stored>(
        &mut self,
        batches: &FamilyBatches<A>,
        unreachable: &mut Vec<RecordId>,
    ) -> usize {
        let maps = A::maps_mut(self.maps);
        // A key that another service has taken over is not removed.
        let (ours, others): (Vec<_>, Vec<_>) = batches
            .removed
            .iter()
            .partition(|(key, record)| maps.index.get(key) == Some(record));
        unreachable.extend(others.into_iter().map(|(_, record)| record));
        let keys: Vec<_> = ours.iter().map(|(key, _)| *key).collect();
        let refused = maps.frontends.delete_all(&keys);
        let mut refused = refused.into_iter().peekable();
        for (position, (key, record)) in ours.iter().enumerate() {
            if let Some(refused) = refused.next_if(|refused| refused.position == position) {
                // The key still leads to the record. It loses its backends, and its id is never
                // used again.
                tracing::warn!(map = A::FRONTENDS, ?key, error = %refused.error, "could not remove an element");
                maps.point_to_blocks(*record, &FamilyState::default());
            } else {
                unreachable.push(*record);
            }
            maps.index.remove(key);
        }
        keys.len()
    }

    fn remove_sources<A: Stored>(&mut self, batches: &FamilyBatches<A>) -> usize {
        let maps = A::maps_mut(self.maps);
        let refused = maps.sources.delete_all(&batches.removed_sources);
        let removed = batches.removed_sources.len() - refused.len();
        for refused in refused {
            let key = &batches.removed_sources[refused.position];
            tracing::warn!(map = A::SOURCE_RANGES, ?key, error = %refused.error, "could not remove an element");
        }
        maps.source_count = maps.source_count.saturating_sub(removed as u32);
        removed
    }

    fn remove_names(&mut self, batches: &Batches) -> usize {
        let ids: Vec<u32> = batches.removed_services.iter().map(|id| id.0).collect();
        for refused in self.maps.names.delete_all(&ids) {
            let id = ids[refused.position];
            tracing::warn!(map = names::NAMES, id, error = %refused.error, "could not remove an element");
        }
        ids.len()
    }
}

/// Removes records from the service's state, because their keys could not be written, and puts what
/// each key still leads to in its place.
fn replace_records<A: Stored>(
    state: &mut ServiceState,
    lost: &HashMap<RecordId, Option<RecordId>>,
) {
    let replace = |list: &mut Vec<RecordId>| {
        let new = |id: &RecordId| lost.get(id).copied().unwrap_or(Some(*id));
        *list = list.iter().filter_map(new).collect();
    };
    let ports = state.ports.iter_mut();
    ports.for_each(|port| replace(&mut port.families[A::AT].frontends));
    replace(&mut state.guards[A::AT]);
}
