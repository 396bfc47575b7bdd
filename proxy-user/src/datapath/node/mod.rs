// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the programs know about the node. In: settings, addresses, interfaces, excepted cgroups. Out: map elements, of which
//! only those that differ are written. Called by `Datapath`; `store` changes some fields of the settings.

mod addresses;
mod exceptions;
mod masquerade;
mod pods;
mod settings;
mod uplinks;

use std::{collections::HashMap, hash::Hash, io};

use crate::datapath::{maps::tables::Table, sys::Plain};
pub use addresses::NodeAddress;
pub(super) use addresses::NodeAddresses;
pub(super) use exceptions::SocketExceptions;
pub(super) use masquerade::MasqueradeSources;
pub(super) use pods::Pods;
pub(super) use settings::{NewAddresses, SettingsCell};
pub(super) use uplinks::Uplinks;

/// Makes a table hold what was stored in it and nothing else; how many elements differed.
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
