// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The maps that tell the programs about the node. In: settings, addresses, interfaces, pods,
//! excepted cgroups. Out: map elements, of which only changed ones are written. Called by
//! `Datapath`; `store` changes some fields of the settings.

mod addresses;
mod masquerade;
mod pods;
mod settings;
mod uplinks;

use std::{collections::HashMap, hash::Hash, io};

use linux::Plain;
use proxy_common::{V4, V6};

use crate::{
    error::DatapathError,
    maps::{OpenMaps, tables::Table},
};
pub use addresses::NodeAddress;
pub(super) use addresses::NodeAddresses;
pub(super) use masquerade::NodeInterfaces;
pub(super) use pods::Pods;
pub(super) use settings::{NewAddresses, SettingsCell};
pub(super) use uplinks::Uplinks;

/// A map, with a copy in this process of what was last stored in it.
pub(super) struct Mirror<K, V> {
    name: &'static str,
    table: Table<K, V>,
    stored: HashMap<K, V>,
}

impl<K: Plain + Eq + Hash, V: Plain + PartialEq> Mirror<K, V> {
    /// Starts with the elements that the map contains.
    pub(super) fn adopt(open: &mut OpenMaps, name: &'static str) -> Result<Self, DatapathError> {
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
    /// Stores an element if it is new or differs.
    fn update(&mut self, key: K, value: V) -> io::Result<()> {
        if self.stored.get(&key) != Some(&value) {
            self.table.update(&key, &value)?;
            self.stored.insert(key, value);
        }
        Ok(())
    }
    fn remove(&mut self, key: &K) -> Result<(), DatapathError> {
        let removed = self.table.delete(key);
        removed.map_err(DatapathError::of_map("write", self.name))?;
        self.stored.remove(key);
        Ok(())
    }
    /// Stores those wanted elements that are new or differ.
    fn store(&mut self, wanted: &HashMap<K, V>) -> Result<(), DatapathError> {
        let mut wanted = wanted.iter();
        wanted
            .try_for_each(|(key, value)| self.update(*key, *value))
            .map_err(DatapathError::of_map("write", self.name))
    }
    /// Removes the elements whose keys are not wanted.
    fn remove_others(&mut self, wanted: &HashMap<K, V>) -> Result<(), DatapathError> {
        let gone = self.stored.keys().filter(|key| !wanted.contains_key(key));
        let gone: Vec<K> = gone.copied().collect();
        gone.iter().try_for_each(|key| self.remove(key))
    }
    /// Makes the map contain exactly these elements. Removals come first, so that there is space.
    pub(super) fn set(&mut self, wanted: &HashMap<K, V>) -> Result<(), DatapathError> {
        self.remove_others(wanted)?;
        self.store(wanted)
    }
    /// Restores the map if somebody else has changed it; returns how many elements differed.
    pub(super) fn repair(&self) -> Result<usize, DatapathError> {
        repair(&self.table, &self.stored).map_err(DatapathError::of_map("check", self.name))
    }
}

/// Two maps whose keys are addresses, one for each family.
pub(super) struct ByAddress<V> {
    v4: Mirror<V4, V>,
    v6: Mirror<V6, V>,
}

impl<V: Plain + PartialEq> ByAddress<V> {
    /// Starts with the elements that the maps of these names contain.
    pub(super) fn adopt(
        open: &mut OpenMaps,
        v4: &'static str,
        v6: &'static str,
    ) -> Result<Self, DatapathError> {
        Ok(Self {
            v4: Mirror::adopt(open, v4)?,
            v6: Mirror::adopt(open, v6)?,
        })
    }
    /// Restores the maps if somebody else has changed them; returns how many elements differed.
    pub(super) fn repair(&self) -> Result<usize, DatapathError> {
        let (v4, v6) = (self.v4.repair(), self.v6.repair());
        Ok(v4? + v6?)
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
