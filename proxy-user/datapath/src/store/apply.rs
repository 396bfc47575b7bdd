// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes services into the maps: prepares and commits each service, then writes the batches of all
//! of them, then frees unused ids after a grace period. Implements `Kernel`, by which the syncer
//! calls it.

use std::collections::{HashMap, HashSet};

use control::{
    apply::{ApplyResult, Failure, Fill, Refusal},
    object::ObjectName,
    plan::ServicePlan,
    syncer::Kernel,
};
use proxy_common::{Backend, FrontendKey, Port, Protocol, ServiceId, V4, V6};

use super::{
    adopt::adopt,
    change::{Batches, Quota, Want},
    commit::commit,
    garbage::{Collector, Grace},
    maps::Maps,
    prepare::{prepare, reduced},
    publish::Publisher,
    state::{ServiceState, Stored},
};
use crate::{
    Datapath,
    error::DatapathError,
    maps::{PinnedMaps, arrays::MappedArray},
    node::{NewAddresses, SettingsCell},
};

/// The services in the maps, and the maps that contain them.
pub(crate) struct Store {
    pub(super) maps: Maps,
    pub(super) services: HashMap<ObjectName, ServiceState>,
    collector: Collector,
}

impl Store {
    pub(crate) fn adopt(open: &PinnedMaps) -> Result<Self, DatapathError> {
        let mut maps = Maps::open(open)?;
        let services = adopt(&mut maps)?;
        let grace = Grace::new().map_err(DatapathError::of_map(
            "wait for readers of",
            proxy_common::maps::RECORDS_V4,
        ))?;
        Ok(Self {
            maps,
            services,
            collector: Collector::new(grace),
        })
    }
    pub(crate) fn addresses(&self) -> (NewAddresses<V4>, NewAddresses<V6>) {
        (self.maps.v4.addresses(), self.maps.v6.addresses())
    }
    /// Returns the service port of the frontend at an address and port, and true if it has
    /// endpoints. If the address has no such frontend, returns the service with this node port.
    /// `None` if there is neither.
    pub(crate) fn owner<A: Stored>(
        &self,
        address: A,
        port: Port,
        protocol: Protocol,
    ) -> Option<(ServiceId, bool)> {
        let family = A::maps(&self.maps);
        let keys = [address, A::UNSPECIFIED].map(|at| FrontendKey::new(at, port, protocol));
        let record = keys.iter().find_map(|key| family.index.get(key))?;
        let record = family.records.load(record.0);
        let has_endpoints = record.internal.count() + record.external.count() != 0;
        Some((record.service, has_endpoints))
    }
    pub(crate) fn backends<A: Stored>(&self) -> &MappedArray<Backend<A>> {
        &A::maps(&self.maps).backends
    }
    /// Writes changed plans into the maps; an empty plan removes the service. `of_new` limits how
    /// far new services may fill the maps.
    fn apply(
        &mut self,
        changes: &[(ObjectName, ServicePlan)],
        of_new: Quota,
        settings: &mut SettingsCell,
    ) -> ApplyResult {
        self.collector.collect(&mut self.maps);
        let mut batches = Batches::default();
        let mut failures = Vec::new();
        for (at, (name, plan)) in changes.iter().enumerate() {
            let mut state = self.services.remove(name).unwrap_or_default();
            let room = if state.ports.is_empty() && !name.is_essential() {
                of_new
            } else {
                Quota::All
            };
            let mut prepared = prepare(&mut self.maps, &state, plan, &batches, Want::Whole, room);
            if let Err(Refusal::Full { .. }) = &prepared
                && self.collector.collect_all(&mut self.maps)
            {
                prepared = prepare(&mut self.maps, &state, plan, &batches, Want::Whole, room);
            }
            match prepared {
                Ok(change) => commit(&mut self.maps, &mut state, name, change, at, &mut batches),
                Err(reason) => {
                    failures.push(Failure::of_service(name, reason));
                    // Writes the part of the change that needs no new elements, above all the
                    // removal of endpoints.
                    let plan = reduced(&self.maps, &state, plan);
                    if let Ok(change) = prepare(
                        &mut self.maps,
                        &state,
                        &plan,
                        &batches,
                        Want::WhatFits,
                        room,
                    ) {
                        commit(&mut self.maps, &mut state, name, change, at, &mut batches);
                    }
                }
            }
            if !state.ports.is_empty() {
                self.services.insert(name.clone(), state);
            }
        }
        let udp_lost = batches.udp_lost;
        let publisher = Publisher {
            maps: &mut self.maps,
            services: &mut self.services,
            changes,
            failures: &mut failures,
        };
        let (written, garbage) = publisher.publish(batches, settings);
        self.collector.add(garbage);
        ApplyResult {
            written,
            failures,
            udp_lost,
        }
    }
}

impl Datapath {
    /// Changes the maps as these plans of services demand; an empty plan removes the service.
    pub fn apply(&mut self, changes: &[(ObjectName, ServicePlan)]) -> ApplyResult {
        self.store(changes, Quota::ButReserve)
    }
    /// Like [`Self::apply`], for services that the previous maps already contained. They may use
    /// the reserved elements that new services must leave free, because they may have used them
    /// before.
    pub fn restore(&mut self, changes: &[(ObjectName, ServicePlan)]) -> ApplyResult {
        self.store(changes, Quota::All)
    }
    fn store(&mut self, changes: &[(ObjectName, ServicePlan)], of_new: Quota) -> ApplyResult {
        let result = self.store.apply(changes, of_new, &mut self.settings);
        if result.udp_lost {
            self.sweep.close_lost(&self.store);
        }
        result
    }
    /// Removes every service from the maps that is not in `known`: an earlier run of the agent left
    /// it there.
    pub fn prune(&mut self, known: &HashSet<ObjectName>) -> ApplyResult {
        let gone = self.store.services.keys();
        let gone = gone.filter(|name| !known.contains(name)).cloned();
        let removals: Vec<_> = gone.map(|name| (name, ServicePlan::default())).collect();
        self.apply(&removals)
    }
    /// Frees the ids of removed services and endpoints as soon as no program can be reading them.
    /// Until then a removed backend counts as used.
    pub fn collect(&mut self) {
        self.store.collector.collect(&mut self.store.maps);
    }
    /// Returns how many services (not service ports) the maps contain.
    pub fn service_count(&self) -> usize {
        self.store.services.len()
    }
    /// Returns the names of the services in the maps.
    pub fn held_services(&self) -> HashSet<ObjectName> {
        self.store.services.keys().cloned().collect()
    }
    /// Returns how full those maps are that the plans of services are written into.
    pub fn fill(&self) -> Vec<Fill> {
        self.store.maps.fill()
    }
}

impl Kernel for Datapath {
    fn apply(&mut self, changes: &[(ObjectName, ServicePlan)]) -> ApplyResult {
        Self::apply(self, changes)
    }
    fn restore(&mut self, changes: &[(ObjectName, ServicePlan)]) -> ApplyResult {
        Self::restore(self, changes)
    }
    fn prune(&mut self, known: &HashSet<ObjectName>) -> ApplyResult {
        Self::prune(self, known)
    }
}

impl Drop for Store {
    /// Waits until all removed backends can be marked as unused, so that the next agent does not
    /// treat one of them as used.
    fn drop(&mut self) {
        self.collector.collect_all(&mut self.maps);
    }
}
