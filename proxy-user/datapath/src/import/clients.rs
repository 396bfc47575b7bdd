// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the interface that a client's packets come from: the one through which its address is
//! reached.

use std::{
    collections::{HashMap, HashSet},
    io,
    net::IpAddr,
    path::Path,
};

use linux::{Reach, Route};
use proxy_common::{
    flow::ClientInterface,
    maps::{self, interface},
};

use super::{Left, open};
use crate::maps::tables::Table;

/// The node's routes and the interfaces with attached programs. Together they give the interface
/// through which a client's packets come in.
pub(super) struct Clients {
    reach: Reach,
    attached: HashMap<u32, u64>,
    bridges: HashSet<u32>,
    known: HashMap<IpAddr, Result<ClientInterface, Left>>,
}

impl Clients {
    pub(super) fn read(home: &Path) -> io::Result<Self> {
        let interfaces: Table<u32, u64> = open(home, maps::INTERFACES)?;
        let words = interfaces.entries()?;
        let bridges = words.iter().map(|(_, word)| interface::bridge(*word));
        Ok(Self {
            reach: Reach::read()?,
            bridges: bridges.filter(|bridge| *bridge != 0).collect(),
            attached: words.into_iter().collect(),
            known: HashMap::new(),
        })
    }

    /// True if this is one of the node's own addresses.
    pub(super) fn is_own(&self, address: IpAddr) -> bool {
        self.reach.route_to(address) == Route::Own
    }

    /// Returns the client's interface as flow keys contain it, or why the client's connections
    /// cannot be imported.
    pub(super) fn interface_of(&mut self, client: IpAddr) -> Result<ClientInterface, Left> {
        if let Some(known) = self.known.get(&client) {
            return *known;
        }
        let found = match self.reach.route_to(client) {
            // KUBE: a process of the node reaches services from its own address. Its packets come
            // from no interface.
            Route::Own => Err(Left::Own),
            Route::By(index) => self.find(index, client).ok_or(Left::Unreached),
            Route::None => Err(Left::Unreached),
        };
        self.known.insert(client, found);
        found
    }

    fn find(&self, mut index: u32, client: IpAddr) -> Option<ClientInterface> {
        if self.bridges.contains(&index) {
            index = self.reach.port_to(index, client)?;
        }
        let word = self.attached.get(&index)?;
        Some(if interface::bits(*word) & interface::SHARED != 0 {
            ClientInterface::SHARED
        } else {
            ClientInterface::of_pod(index)
        })
    }
}
