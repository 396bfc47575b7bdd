// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The maps that tell the programs about the node. In: settings, addresses, interfaces, pods,
//! excepted cgroups. Out: map elements, of which only changed ones are written. Called by
//! `Datapath`; `store` changes some fields of the settings.

mod addresses;
mod exceptions;
mod macs;
mod masquerade;
mod pods;
mod settings;
mod uplinks;

use std::{collections::HashMap, hash::Hash, io};

use linux::Plain;

use crate::{
    error::DatapathError,
    maps::{OpenMaps, tables::Table},
};
pub use addresses::NodeAddress;
pub(super) use addresses::NodeAddresses;
pub(super) use exceptions::SocketExceptions;
pub(super) use macs::Macs;
pub(super) use masquerade::NodeInterfaces;
pub(super) use pods::Pods;
pub(super) use settings::{NewAddresses, SettingsCell};
pub(super) use uplinks::Uplinks;

/// A map, with a copy in this process of what was last stored in it.
struct Mirror<K, V> {
    name: &'static str,
    table: Table<K, V>,
    stored: HashMap<K, V>,
}

impl<K: Plain + Eq + Hash, V: Plain + PartialEq> Mirror<K, V> {
    /// Starts with the elements that the map contains.
    fn adopt(open: &mut OpenMaps, name: &'static str) -> Result<Self, DatapathError> {
        let table: Table<K, V> = open.take(name, Table::new)?;
        let stored = table
            .entries()
            .map_err(DatapathError::of_map("read", name))?;
        Ok(Self {
            name,
            table,
            stored: stored.into_iter().collect(),
        })
    }
    /// Stores those wanted elements that are new or differ.
    fn store(&mut self, wanted: &HashMap<K, V>) -> Result<(), DatapathError> {
        for (key, value) in wanted {
            if self.stored.get(key) != Some(value) {
                self.table
                    .update(key, value)
                    .map_err(DatapathError::of_map("write", self.name))?;
                self.stored.insert(*key, *value);
            }
        }
        Ok(())
    }
    /// Removes the elements whose keys are not wanted.
    fn remove_others(&mut self, wanted: &HashMap<K, V>) -> Result<(), DatapathError> {
        let gone = self.stored.keys().filter(|key| !wanted.contains_key(key));
        for key in gone.copied().collect::<Vec<K>>() {
            self.table
                .delete(&key)
                .map_err(DatapathError::of_map("write", self.name))?;
            self.stored.remove(&key);
        }
        Ok(())
    }
    /// Restores the map if somebody else has changed it; returns how many elements differed.
    fn repair(&self) -> Result<usize, DatapathError> {
        repair(&self.table, &self.stored).map_err(DatapathError::of_map("check", self.name))
    }
}

/// Makes a table contain exactly the `stored` elements; returns how many differed.
fn repair<K, V>(table: &Table<K, V>, stored: &HashMap<K, V>) -> io::Result<usize>
where
    K: Plain + Eq + Hash,
    V: Plain + PartialEq,
{
    let found: HashMap<K, V> = table.entries()?.into_iter().collect();
    let mut count = 0;
    for (key, value) in stored
        .iter()
        .filter(|(key, value)| found.get(key) != Some(value))
    {
        table.update(key, value)?;
        count += 1;
    }
    for key in found.keys().filter(|key| !stored.contains_key(key)) {
        table.delete(key)?;
        count += 1;
    }
    Ok(count)
}
