// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The map `settings`: the agent's settings for the node, and the ranges of service addresses,
//! which the datapath maintains itself. Used by `Datapath` and `store`.

use std::io;

use proxy_common::{
    FrontendKind, Prefix, Settings, V4, V6, maps, masquerade::PortRanges, settings::RANGES,
};

use super::Mirror;
use crate::{
    Datapath,
    error::DatapathError,
    maps::{
        PinnedMaps,
        family::Family,
        ranges::{Near, include, include_all},
    },
};

/// The map `settings`, which has one element.
pub(crate) struct SettingsCell {
    map: Mirror<u32, Settings>,
    /// The settings that should be in the map. They differ from those stored only if the kernel
    /// refused a write.
    wanted: Settings,
}

/// Addresses of one family that frontends have or are about to get; the ranges in the settings must
/// contain them.
#[derive(Default)]
pub(crate) struct NewAddresses<A> {
    cluster_ips: Vec<A>,
    /// External and load balancer IPs.
    external_ips: Vec<A>,
}

impl<A> NewAddresses<A> {
    /// Adds the address of a frontend to the list that its kind belongs to. A node port has none.
    pub(crate) fn add(&mut self, kind: FrontendKind, address: A) {
        match kind {
            FrontendKind::ClusterIp | FrontendKind::Unserved => self.cluster_ips.push(address),
            FrontendKind::ExternalIp | FrontendKind::LoadBalancer | FrontendKind::Echo => {
                self.external_ips.push(address);
            }
            FrontendKind::NodePort => {}
        }
    }
}

impl SettingsCell {
    /// Starts with the settings in the map, and widens the ranges of service addresses to contain
    /// those of the adopted frontends.
    pub(crate) fn adopt(
        open: &PinnedMaps,
        (v4, v6): &(NewAddresses<V4>, NewAddresses<V6>),
    ) -> Result<Self, DatapathError> {
        let map = Mirror::adopt(open, maps::SETTINGS)?;
        // A new map is all zeros, and a range of zeros would contain every address.
        let is_new = |found: &&Settings| found.masquerade_ports == PortRanges([0; 4]);
        let found = map.stored.get(&0).filter(|found| !is_new(found));
        let wanted = found.copied().unwrap_or(Settings::EMPTY);
        let mut cell = Self { map, wanted };
        cell.cover(v4, v6)
            .map_err(DatapathError::of_map("write", maps::SETTINGS))?;
        Ok(cell)
    }
    fn store(&mut self, settings: Settings) -> io::Result<bool> {
        self.wanted = settings;
        let differs = self.map.stored.get(&0) != Some(&settings);
        self.map.update(0, settings)?;
        Ok(differs)
    }
    /// Whether segments of unknown connections to a service get a reset.
    pub(crate) fn resets(&self) -> bool {
        let stored = self.map.stored.get(&0);
        stored.is_some_and(|stored| stored.has(Settings::RESET_UNKNOWN))
    }
    pub(crate) fn repair(&self) -> Result<usize, DatapathError> {
        self.map.repair()
    }
    /// Widens the ranges of service addresses to contain these; true if anything had to be stored.
    /// The ranges never shrink, because connections outlive services.
    pub(crate) fn cover(
        &mut self,
        v4: &NewAddresses<V4>,
        v6: &NewAddresses<V6>,
    ) -> io::Result<bool> {
        fn widen<A: Family>(settings: &mut Settings, by: &NewAddresses<A>) {
            let services = A::services(settings);
            *services = include_all(services, &by.cluster_ips, Near::CLUSTER_IPS);
            let external = A::external(settings);
            *external = include_all(external, &by.external_ips, Near::EXTERNAL_IPS);
        }
        let mut wanted = self.wanted;
        widen(&mut wanted, v4);
        widen(&mut wanted, v6);
        self.store(wanted)
    }
}

impl Datapath {
    /// Stores the node's settings, except the ranges of service addresses, which the datapath
    /// maintains itself and only widens.
    pub fn set_settings(&mut self, settings: &Settings) -> Result<(), DatapathError> {
        fn widen<A: Family>(settings: &mut Settings, by: &[Prefix<A>; RANGES]) {
            let ranges = A::services(settings);
            *ranges = by.iter().fold(*ranges, |ranges, range| {
                include(&ranges, *range, Near::CLUSTER_IPS)
            });
        }
        let known = self.settings.wanted;
        let mut wanted = Settings {
            services_v4: known.services_v4,
            services_v6: known.services_v6,
            external_v4: known.external_v4,
            external_v6: known.external_v6,
            ..*settings
        };
        widen(&mut wanted, &settings.allocated_v4);
        widen(&mut wanted, &settings.allocated_v6);
        let stored = self.settings.store(wanted).map(drop);
        stored.map_err(DatapathError::of_map("write", maps::SETTINGS))
    }
}
