// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The map `settings`: what the agent says about the node, with the ranges of cluster IPs, which the datapath keeps itself.
//! Used by `Datapath` and `store`.

use std::io;

use proxy_common::{Addr, Prefix, Settings, V4, V6, maps, settings::RANGES};

use crate::datapath::{
    error::DatapathError,
    maps::{
        OpenMaps,
        family::{Family, cover, join},
        tables::Table,
    },
};

/// The one element of `settings`.
pub(crate) struct SettingsCell {
    table: Table<u32, Settings>,
    stored: Settings,
}

impl SettingsCell {
    /// Starts with what is stored.
    pub(crate) fn adopt(open: &mut OpenMaps) -> Result<Self, DatapathError> {
        let table: Table<u32, Settings> = open.take(maps::SETTINGS, Table::new)?;
        let failed = DatapathError::of_map("read", maps::SETTINGS);
        let found = table.lookup(&0).map_err(failed)?.unwrap_or(Settings::EMPTY);
        let mut cell = Self {
            table,
            stored: found,
        };
        let mut wanted = found;
        // A new map is all zero, and such a range would hold every address.
        if found.services_v4.mask == V4::UNSPECIFIED && found.services_v6.mask == V6::UNSPECIFIED {
            wanted = Settings::EMPTY;
        }
        cell.store(wanted)
            .map_err(DatapathError::of_map("write", maps::SETTINGS))?;
        Ok(cell)
    }
    fn store(&mut self, settings: Settings) -> io::Result<bool> {
        if settings == self.stored {
            return Ok(false);
        }
        self.table.update(&0, &settings)?;
        self.stored = settings;
        Ok(true)
    }
    fn change(&mut self, settings: Settings) -> Result<(), DatapathError> {
        let failed = DatapathError::of_map("write", maps::SETTINGS);
        self.store(settings).map(drop).map_err(failed)
    }
    /// Replaces everything that the agent says.
    pub(crate) fn set(&mut self, settings: &Settings) -> Result<(), DatapathError> {
        fn widened<A: Family>(range: Prefix<A>, by: &[Prefix<A>; RANGES]) -> Prefix<A> {
            by.iter().fold(range, |range, by| join(range, *by))
        }
        self.change(Settings {
            services_v4: widened(self.stored.services_v4, &settings.allocated_v4),
            services_v6: widened(self.stored.services_v6, &settings.allocated_v6),
            ..*settings
        })
    }
    /// Widens the ranges of cluster IPs; whether anything was stored. They never shrink, because connections outlive
    /// services.
    pub(crate) fn cover(&mut self, v4: &[V4], v6: &[V6]) -> io::Result<bool> {
        fn widened<A: Family>(range: Prefix<A>, addresses: &[A]) -> Prefix<A> {
            addresses
                .iter()
                .fold(range, |range, address| cover(range, *address))
        }
        self.store(Settings {
            services_v4: widened(self.stored.services_v4, v4),
            services_v6: widened(self.stored.services_v6, v6),
            ..self.stored
        })
    }
}
