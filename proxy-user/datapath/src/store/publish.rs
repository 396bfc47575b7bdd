// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Third part of an apply: writes the queued elements of hash maps of all services, in an order
//! that is safe for the programs that read them. Called by `apply`.
//!
//! The order: names and source ranges, frontends, removal of frontends and of what only these led
//! to, and last the backends that are gone.

use std::{collections::HashMap, io};

use control::{
    apply::{Affected, Failure, Refusal},
    object::ObjectName,
    plan::ServicePlan,
};
use proxy_common::{Port, RecordId, maps as names};

use super::{
    batches::{Batches, FamilyBatches},
    family::Stored,
    garbage::Garbage,
    maps::Maps,
    state::ServiceState,
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
            records_v4,
            records_v6,
            backends_v4: batches.v4.gone_backends,
            backends_v6: batches.v6.gone_backends,
            blocks,
            services: batches.removed_services,
        };
        (written, garbage)
    }

    /// Adds a failure: the kernel refused an element of a service. Returns the service's state;
    /// `None` if it was removed. `change` is the index of the service in the changes.
    fn refused(
        &mut self,
        change: usize,
        map: &'static str,
        error: io::Error,
    ) -> Option<&mut ServiceState> {
        let (name, _) = &self.changes[change];
        let reason = Refusal::Element { map, error };
        self.failures.push(Failure::of_service(name, reason));
        self.services.get_mut(name)
    }

    fn publish_names(&mut self, batches: &Batches) -> usize {
        let keys: Vec<_> = batches.names.iter().map(|(id, _, _)| *id).collect();
        let values: Vec<_> = batches.names.iter().map(|(_, name, _)| *name).collect();
        for refused in self.maps.names.update_all(&keys, &values) {
            let (id, _, change) = batches.names[refused.position];
            // Forgets the port's number, so that the next apply writes the name again.
            let state = self.refused(change, names::NAMES, refused.error);
            for port in state.into_iter().flat_map(|state| &mut state.ports) {
                if port.id.0 == id {
                    port.port = Port::ANY;
                }
            }
        }
        keys.len()
    }

    fn publish_sources<A: Stored>(&mut self, batches: &FamilyBatches<A>) -> usize {
        let keys: Vec<_> = batches.sources.iter().map(|source| source.key).collect();
        let refused = A::maps(self.maps)
            .sources
            .update_all(&keys, &vec![1; keys.len()]);
        A::maps_mut(self.maps).source_count += (keys.len() - refused.len()) as u32;
        for refused in refused {
            let source = &batches.sources[refused.position];
            // Forgets the range, so that the next apply writes it again.
            let state = self.refused(source.change, A::SOURCE_RANGES, refused.error);
            for port in state.into_iter().flat_map(|state| &mut state.ports) {
                if port.id == source.key.data.service {
                    port.source_ranges
                        .retain(|range| A::source_range(port.id, range) != Some(source.key));
                }
            }
        }
        keys.len()
    }

    /// Writes new frontends into their map; returns the records that no key leads to any more.
    fn publish_frontends<A: Stored>(&mut self, batches: &FamilyBatches<A>) -> Vec<RecordId> {
        let keys: Vec<_> = batches.frontends.iter().map(|new| new.key).collect();
        let values: Vec<_> = batches.frontends.iter().map(|new| new.record.0).collect();
        let refused = A::maps(self.maps).frontends.update_all(&keys, &values);
        let mut refused = refused.into_iter().peekable();
        let mut unreachable = Vec::new();
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
            if let Some(state) = self.refused(new.change, A::FRONTENDS, refused.error) {
                replace_record::<A>(state, new.record, kept);
            }
        }
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
                maps.empty_blocks(*record);
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

/// Removes a record from the service's state, because its key could not be written, and puts `by`
/// in its place if there is one.
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
