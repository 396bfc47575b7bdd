// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The map of what the XDP program may do at each uplink, and the map with the epoch: a number that
//! changes when routes or neighbours have changed. Used by `Datapath`.

use proxy_common::{maps, xdp::Uplink};

use super::Mirror;
use crate::{
    error::DatapathError,
    maps::{OpenMaps, tables::Table},
};

/// The uplinks, by interface index, each with a word of its MAC address and flags (see [`Uplink`]).
pub(crate) struct Uplinks {
    words: Mirror<u32, u64>,
    epoch: Table<u32, u32>,
}

impl Uplinks {
    /// Starts with the elements that the map contains.
    pub(crate) fn adopt(open: &mut OpenMaps) -> Result<Self, DatapathError> {
        Ok(Self {
            words: Mirror::adopt(open, maps::UPLINKS)?,
            epoch: open.take(maps::ROUTE_EPOCH, Table::new)?,
        })
    }
    /// Stores the word of the interface with this index; `None` removes it: the interface is no
    /// longer an uplink with XDP.
    pub(crate) fn set(&mut self, index: u32, word: Option<Uplink>) -> Result<(), DatapathError> {
        if self.words.stored.get(&index).copied() == word.map(|word| word.0) {
            return Ok(());
        }
        match word {
            Some(word) => {
                let stored = self.words.update(index, word.0);
                stored.map_err(DatapathError::of_map("write", maps::UPLINKS))?;
            }
            None => self.words.remove(&index)?,
        }
        self.begin_epoch()
    }
    /// Starts a new epoch, so that the XDP program looks up its next hops again.
    pub(crate) fn begin_epoch(&mut self) -> Result<(), DatapathError> {
        let failed = DatapathError::of_map("write", maps::ROUTE_EPOCH);
        let epoch = self.epoch.lookup(&0).map_err(failed)?.unwrap_or_default();
        self.epoch
            .update(&0, &epoch.wrapping_add(1))
            .map_err(failed)
    }
    /// Returns the indices of the interfaces in the map.
    pub(crate) fn indices(&self) -> Vec<u32> {
        self.words.stored.keys().copied().collect()
    }
    /// Restores the map of uplinks if somebody else has changed it; returns how many elements
    /// differed.
    pub(crate) fn repair(&mut self) -> Result<usize, DatapathError> {
        self.words.repair()
    }
}
