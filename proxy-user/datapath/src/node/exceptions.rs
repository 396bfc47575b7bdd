// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The map of cgroups whose sockets the socket hooks ignore. Used by `Datapath`.

use std::collections::{HashMap, HashSet};

use proxy_common::maps;

use super::repair;
use crate::{
    error::DatapathError,
    maps::{OpenMaps, tables::Table},
};

/// The map of the cgroups whose sockets the socket hooks ignore. Its keys are the cgroups' ids.
pub(crate) struct SocketExceptions {
    table: Table<u64, u32>,
    /// The elements that were last set; `None` before the first call of `set`.
    stored: Option<HashMap<u64, u32>>,
}

impl SocketExceptions {
    pub(crate) fn open(open: &mut OpenMaps) -> Result<Self, DatapathError> {
        Ok(Self {
            table: open.take(maps::EXCEPTIONS, Table::new)?,
            stored: None,
        })
    }
    /// Makes the map contain exactly these cgroup ids.
    pub(crate) fn set(&mut self, cgroups: &HashSet<u64>) -> Result<(), DatapathError> {
        let failed = DatapathError::of_map("write", maps::EXCEPTIONS);
        let stored = self.table.entries().map_err(failed)?;
        let stored: HashSet<u64> = stored.into_iter().map(|(id, _)| id).collect();
        for gone in stored.difference(cgroups) {
            self.table.delete(gone).map_err(failed)?;
        }
        for new in cgroups.difference(&stored) {
            self.table.update(new, &1).map_err(failed)?;
        }
        self.stored = Some(cgroups.iter().map(|id| (*id, 1)).collect());
        Ok(())
    }
    /// Restores the map if somebody else has changed it; returns how many ids differed.
    pub(crate) fn repair(&mut self) -> Result<usize, DatapathError> {
        let stored = self.stored.as_ref();
        stored
            .map_or(Ok(0), |stored| repair(&self.table, stored))
            .map_err(DatapathError::of_map("check", maps::EXCEPTIONS))
    }
}
