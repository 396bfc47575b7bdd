// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes services into the maps: prepares and commits each service, then writes the batches of all
//! of them, then frees unused ids after a grace period. Called by `Datapath`.

use std::collections::HashMap;

use control::{
    apply::{ApplyResult, Failure, Fill, Refusal},
    object::ObjectName,
    plan::ServicePlan,
};
use proxy_common::{Backend, FrontendKey, Port, Protocol, ServiceId, V4, V6};

use super::{
    adopt::adopt,
    batches::Batches,
    change::{Quota, Want},
    commit::commit,
    family::Stored,
    garbage::Collector,
    grace::Grace,
    maps::Maps,
    prepare::prepare,
    publish::Publisher,
    reduce::reduced,
    state::ServiceState,
};
use crate::{
    error::DatapathError,
    maps::{OpenMaps, arrays::MappedArray},
    node::{NewAddresses, SettingsCell},
};

/// The services in the maps, and the maps that contain them.
pub(crate) struct Store {
    maps: Maps,
    services: HashMap<ObjectName, ServiceState>,
    collector: Collector,
}

impl Store {
    /// Starts with the services that the maps contain.
    pub(crate) fn adopt(open: &mut OpenMaps) -> Result<Self, DatapathError> {
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
    /// Returns the addresses of all frontends in the maps.
    pub(crate) fn addresses(&self) -> (NewAddresses<V4>, NewAddresses<V6>) {
        (self.maps.v4.addresses(), self.maps.v6.addresses())
    }
    /// Returns how full those maps are that the plans of services are written into.
    pub(crate) fn fill(&self) -> Vec<Fill> {
        self.maps.fill()
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
    pub(super) fn maps(&self) -> &Maps {
        &self.maps
    }
    pub(super) fn state(&self, name: &ObjectName) -> Option<&ServiceState> {
        self.services.get(name)
    }
    /// Returns the names of all services in the maps.
    pub(crate) fn names(&self) -> impl ExactSizeIterator<Item = &ObjectName> {
        self.services.keys()
    }

    /// Frees the ids of removed elements that no program can be reading any more. Until then a
    /// removed backend counts as used.
    pub(crate) fn collect(&mut self) {
        self.collector.collect(&mut self.maps);
    }

    /// Writes changed plans into the maps; an empty plan removes the service. `of_new` limits how
    /// far new services may fill the maps.
    pub(crate) fn apply(
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

impl Drop for Store {
    /// Waits until all removed backends can be marked as unused, so that the next agent does not
    /// treat one of them as used.
    fn drop(&mut self) {
        self.collector.collect_all(&mut self.maps);
    }
}
