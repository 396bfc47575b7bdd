// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The map of the link-layer addresses of the node's interfaces. Used by `Datapath`.

use std::collections::HashMap;

use linux::interfaces::Mac;
use proxy_common::maps::{self, interface};

use super::Mirror;
use crate::{error::DatapathError, maps::OpenMaps};

/// The map of the link-layer addresses of the node's interfaces.
pub(crate) struct Macs(Mirror<u64, u32>);

impl Macs {
    /// Starts with the elements that the map contains.
    pub(crate) fn adopt(open: &mut OpenMaps) -> Result<Self, DatapathError> {
        Mirror::adopt(open, maps::MACS).map(Self)
    }
    /// Makes the map contain exactly these addresses.
    pub(crate) fn set(&mut self, macs: impl Iterator<Item = Mac>) -> Result<(), DatapathError> {
        let wanted: HashMap<u64, u32> = macs.map(|mac| (interface::mac(mac), 1)).collect();
        self.0.store(&wanted)?;
        self.0.remove_others(&wanted)
    }
    /// Restores the map if somebody else has changed it; returns how many elements differed.
    pub(crate) fn repair(&self) -> Result<usize, DatapathError> {
        self.0.repair()
    }
}
