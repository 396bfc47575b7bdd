// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The maps of the node's own addresses. Used by `Datapath`.

use std::{collections::HashMap, net::IpAddr};

use proxy_common::{V4, V6, maps::node_address};

use super::repair;
use crate::datapath::{
    error::DatapathError,
    maps::{OpenMaps, family::Family, tables::Table},
};

/// An address of this node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeAddress {
    pub address: IpAddr,
    /// Node ports are served on it.
    pub node_ports: bool,
}

/// The node's addresses.
pub(crate) struct NodeAddresses {
    v4: AddressSet<V4>,
    v6: AddressSet<V6>,
}

impl NodeAddresses {
    /// Starts with what is stored.
    pub(crate) fn adopt(open: &mut OpenMaps) -> Result<Self, DatapathError> {
        Ok(Self {
            v4: AddressSet::adopt(open)?,
            v6: AddressSet::adopt(open)?,
        })
    }
    /// Replaces all addresses.
    pub(crate) fn set(&mut self, addresses: &[NodeAddress]) -> Result<(), DatapathError> {
        self.v4.set(addresses)?;
        self.v6.set(addresses)
    }
    /// Stores the addresses again if the maps hold others; how many differed.
    pub(crate) fn repair(&mut self) -> Result<usize, DatapathError> {
        let v4 = repair(&self.v4.table, &self.v4.stored);
        let v6 = repair(&self.v6.table, &self.v6.stored);
        let count = v4.map_err(DatapathError::of_map("check", V4::NODE_ADDRESSES))?;
        Ok(count + v6.map_err(DatapathError::of_map("check", V6::NODE_ADDRESSES))?)
    }
}

/// The addresses of one family.
struct AddressSet<A> {
    table: Table<A, u32>,
    stored: HashMap<A, u32>,
}

impl<A: Family> AddressSet<A> {
    fn adopt(open: &mut OpenMaps) -> Result<Self, DatapathError> {
        let table: Table<A, u32> = open.take(A::NODE_ADDRESSES, Table::new)?;
        let stored = table
            .entries()
            .map_err(DatapathError::of_map("read", A::NODE_ADDRESSES))?;
        Ok(Self {
            table,
            stored: stored.into_iter().collect(),
        })
    }
    /// Stores the difference, new addresses first.
    fn set(&mut self, addresses: &[NodeAddress]) -> Result<(), DatapathError> {
        let failed = DatapathError::of_map("write", A::NODE_ADDRESSES);
        let mut wanted: HashMap<A, u32> = HashMap::new();
        for address in addresses {
            if let Some(key) = A::of_ip(address.address) {
                let bits = if address.node_ports {
                    node_address::NODE_PORT
                } else {
                    0
                };
                *wanted.entry(key).or_default() |= bits;
            }
        }
        for (address, bits) in &wanted {
            if self.stored.get(address) != Some(bits) {
                self.table.update(address, bits).map_err(failed)?;
                self.stored.insert(*address, *bits);
            }
        }
        let gone: Vec<A> = self
            .stored
            .keys()
            .filter(|address| !wanted.contains_key(address))
            .copied()
            .collect();
        for address in gone {
            self.table.delete(&address).map_err(failed)?;
            self.stored.remove(&address);
        }
        Ok(())
    }
}
