// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The node's interfaces, and at which of their tc hooks portolan's programs are. For `resolve`.

use std::{
    cell::OnceCell,
    io,
    net::IpAddr,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use datapath::{Attached, read::Reader};
use linux::{LinkFacts, Routed, interfaces::port_to};
use proxy_common::maps::interface;

/// How long to wait in all until bridges have learnt their ports.
const PATIENCE: Duration = Duration::from_secs(1);

/// An interface, with what is known of its tc hooks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct HookedInterface {
    pub(super) index: u32,
    pub(super) link: LinkFacts,
    /// Whether a program of portolan's is at the ingress hook, and whether one is at egress.
    pub(super) ours: [bool; 2],
    /// The index that the kernel's route lookup sees: of a bridge's port that of the bridge.
    pub(super) stack_index: u32,
}

/// Reads interfaces, with the programs at their tc hooks.
pub(super) struct HookedInterfaces {
    reader: Reader,
    attached: Attached,
    /// Until when neighbours behind bridges are waited for.
    deadline: OnceCell<Instant>,
}

impl HookedInterfaces {
    pub(super) fn new(pin_dir: &Path) -> Result<Self> {
        Ok(Self {
            reader: Reader::without_names(pin_dir)?,
            attached: Attached::read(pin_dir)?,
            deadline: OnceCell::new(),
        })
    }

    /// Returns the node's route to an address, and the interface that packets from that address
    /// come in by. The interface is None if packets to the address do not leave the node.
    pub(super) fn to(&self, address: IpAddr) -> Result<(Routed, Option<HookedInterface>)> {
        let routed = linux::route(address, None)?;
        let place = match routed {
            Routed::Leaves {
                interface,
                neighbour,
            } => Some(self.at(interface, Some(neighbour))?),
            _ => None,
        };
        Ok((routed, place))
    }

    /// Returns whether pods are behind the interface with this index.
    pub(super) fn leads_to_pods(&self, index: u32) -> bool {
        let word = self.reader.interface_word(index).ok().flatten();
        word.is_some_and(|word| interface::bits(word) & interface::PODS != 0)
    }

    /// Returns the port of a bridge that leads to a neighbour, if the bridge learns it when asked.
    fn port(&self, bridge: u32, neighbour: IpAddr) -> io::Result<Option<u32>> {
        const PAUSE: Duration = Duration::from_millis(10);
        let mut port = port_to(bridge, neighbour)?;
        // The neighbour's answer passes the bridge, which learns its port by that.
        if port.is_none() && linux::ask_neighbour(bridge, neighbour).is_ok() {
            let deadline = *self.deadline.get_or_init(|| Instant::now() + PATIENCE);
            while port.is_none() && Instant::now() < deadline {
                thread::sleep(PAUSE);
                port = port_to(bridge, neighbour)?;
            }
        }
        Ok(port)
    }

    /// Returns the interface with this index, with its hooks. For a bridge, returns the bridge's
    /// port that leads to `neighbour` instead, if the bridge knows it.
    pub(super) fn at(&self, index: u32, neighbour: Option<IpAddr>) -> Result<HookedInterface> {
        let link = linux::link(index)?;
        if let Some(neighbour) = neighbour.filter(|_| link.is_bridge)
            && let Some(port) = self.port(index, neighbour)?
        {
            return self.at(port, None);
        }
        // The interface's entry in the map of interfaces.
        let word = self.reader.interface_word(index)?;
        let bits = word.map_or(0, interface::bits);
        let is_port = bits & (interface::VETH_PORT | interface::BRIDGE_PORT) != 0;
        let stack_index = match word.map_or(0, interface::bridge) {
            0 => link.master.filter(|_| is_port).unwrap_or(index),
            bridge => bridge,
        };
        Ok(HookedInterface {
            index,
            link,
            ours: self.attached.states(index)?.map(|state| state.ours),
            stack_index,
        })
    }
}
