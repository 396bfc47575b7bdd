// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The map of cgroups whose sockets the socket hooks leave alone. Used by `Datapath`.

use std::collections::HashSet;

use proxy_common::maps;

use crate::datapath::{
    error::DatapathError,
    maps::{OpenMaps, tables::Table},
};

/// Ids of the excepted cgroups.
pub(crate) struct SocketExceptions(Table<u64, u32>);

impl SocketExceptions {
    pub(crate) fn open(open: &mut OpenMaps) -> Result<Self, DatapathError> {
        open.take(maps::EXCEPTIONS, Table::new).map(Self)
    }
    /// Replaces all ids.
    pub(crate) fn set(&mut self, cgroups: &HashSet<u64>) -> Result<(), DatapathError> {
        let failed = DatapathError::of_map("write", maps::EXCEPTIONS);
        let stored = self.0.entries().map_err(failed)?;
        let stored: HashSet<u64> = stored.into_iter().map(|(id, _)| id).collect();
        for gone in stored.difference(cgroups) {
            self.0.delete(gone).map_err(failed)?;
        }
        for new in cgroups.difference(&stored) {
            self.0.update(new, &1).map_err(failed)?;
        }
        Ok(())
    }
}
