// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The maps of the node's own addresses. Used by `Datapath`.

use std::{collections::HashMap, net::IpAddr};

use proxy_common::maps::node_address;

use super::{ByAddress, Mirror};
use crate::{error::DatapathError, maps::family::Family};

/// An address of this node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeAddress {
    pub address: IpAddr,
    /// True if node ports are served on this address.
    pub node_ports: bool,
}

/// The maps of the node's addresses, one for each family.
pub(crate) type NodeAddresses = ByAddress<u32>;

impl NodeAddresses {
    /// Makes the maps contain exactly these addresses.
    pub(crate) fn set(&mut self, addresses: &[NodeAddress]) -> Result<(), DatapathError> {
        set(&mut self.v4, addresses)?;
        set(&mut self.v6, addresses)
    }
}

/// Makes the map of one family contain exactly these addresses. Adds new ones before it removes
/// others.
fn set<A: Family>(
    known: &mut Mirror<A, u32>,
    addresses: &[NodeAddress],
) -> Result<(), DatapathError> {
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
    known.store(&wanted)?;
    known.remove_others(&wanted)
}
