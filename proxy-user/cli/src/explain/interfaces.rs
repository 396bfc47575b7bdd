// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The node's interfaces and the programs at their tc hooks. Each interface is read only once.
//! Called by `look` and `resolve`.

use std::{
    cell::{OnceCell, RefCell},
    collections::HashMap,
    net::IpAddr,
    path::Path,
};

use anyhow::Result;
use datapath::{Attached, read::Reader};
use linux::{Reach, Routed};
use proxy_common::maps::interface;

use super::host::HookedInterface;

/// The node's route to a client, and the interface that the client's packets come in by. Both are
/// None if the client is a process of the node.
pub(super) type ClientRoute = (Option<Routed>, Option<HookedInterface>);

/// The interfaces that were read so far, with the programs at their tc hooks.
pub(super) struct HookedInterfaces {
    attached: Attached,
    /// The neighbour table and the ports of bridges. Read only if a route leads through a bridge.
    reach: OnceCell<Reach>,
    known: RefCell<HashMap<u32, HookedInterface>>,
}

impl HookedInterfaces {
    pub(super) fn new(pin_dir: &Path) -> Result<Self> {
        Ok(Self {
            attached: Attached::read(pin_dir)?,
            reach: OnceCell::new(),
            known: RefCell::default(),
        })
    }

    /// Returns the node's route to an address, and the interface that packets from that address
    /// come in by. The interface is None if packets to the address do not leave the node.
    pub(super) fn to(&self, reader: &Reader, address: IpAddr) -> Result<ClientRoute> {
        let routed = linux::route(address, None)?;
        let place = match &routed {
            Routed::Leaves {
                interface,
                neighbour,
                ..
            } => Some(self.at(reader, *interface, Some(*neighbour))?),
            _ => None,
        };
        Ok((Some(routed), place))
    }

    /// Returns the interface with this index, with its hooks. For a bridge, returns the bridge's
    /// port that leads to `neighbour` instead, if it is known.
    pub(super) fn at(
        &self,
        reader: &Reader,
        index: u32,
        neighbour: Option<IpAddr>,
    ) -> Result<HookedInterface> {
        if let Some(known) = self.known.borrow().get(&index) {
            return Ok(known.clone());
        }
        let link = linux::link(index)?;
        if let Some(neighbour) = neighbour.filter(|_| link.is_bridge) {
            if self.reach.get().is_none() {
                _ = self.reach.set(Reach::read()?);
            }
            let port = self
                .reach
                .get()
                .and_then(|reach| reach.port_to(index, neighbour));
            if let Some(port) = port {
                return self.at(reader, port, None);
            }
        }
        let word = reader.interface_word(index)?;
        let place = HookedInterface {
            index,
            hooks: self.attached.states(index)?,
            stack_index: match word.map_or(0, interface::bridge) {
                0 => link
                    .master
                    .filter(|_| word.is_some_and(is_port))
                    .unwrap_or(index),
                bridge => bridge,
            },
            link,
            verdicts: Vec::new(),
        };
        self.known.borrow_mut().insert(index, place.clone());
        Ok(place)
    }
}

/// Returns whether an interface is a port of a bridge. `word`: its entry in the map of interfaces.
fn is_port(word: u64) -> bool {
    interface::bits(word) & (interface::VETH_PORT | interface::BRIDGE_PORT) != 0
}
