// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The node's interfaces and the programs at their tc hooks. Each interface is read only once.
//! Called by `look` and `resolve`.

use std::{
    cell::RefCell,
    collections::{BTreeSet, HashMap},
    io,
    net::IpAddr,
    path::Path,
    time::Duration,
};

use anyhow::Result;
use datapath::{Attached, read::Reader};
use linux::{LinkFacts, Neighbour, NeighbourState, Reach, Routed, ask_neighbours};
use proxy_common::maps::interface;

use super::host::{HookedInterface, Silence};

/// How long to wait for a neighbour's answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// The node's route to a client, and the interface that the client's packets come in by. Both are
/// None if the client is a process of the node.
pub(super) type ClientRoute = (Option<Routed>, Option<HookedInterface>);

/// The interfaces that were read so far, with the programs at their tc hooks.
pub(super) struct HookedInterfaces {
    attached: Attached,
    /// The neighbour table and the ports of bridges. Read only if a route leads through a bridge.
    reach: RefCell<Option<Reach>>,
    /// The neighbours that were asked so far.
    asked: RefCell<HashMap<Neighbour, NeighbourState>>,
    known: RefCell<HashMap<u32, HookedInterface>>,
}

impl HookedInterfaces {
    pub(super) fn new(pin_dir: &Path) -> Result<Self> {
        Ok(Self {
            attached: Attached::read(pin_dir)?,
            reach: RefCell::default(),
            asked: RefCell::default(),
            known: RefCell::default(),
        })
    }

    /// Returns the names of the foreign programs at these socket hooks, in any cgroup.
    pub(super) fn at_sockets(&self, cgroup: &Path, wanted: &[&str]) -> BTreeSet<String> {
        self.attached.foreign_at_sockets(cgroup, wanted)
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

    /// Has the kernel ask for those neighbours that it does not know to answer, each only once.
    /// With `again` it also asks for those that have answered lately. Leaves out those behind an
    /// interface that carries no packet.
    pub(super) fn ask(&self, neighbours: &[Neighbour], again: bool) -> io::Result<()> {
        let is_new = |one: &&Neighbour| !self.asked.borrow().contains_key(one);
        let mut wanted = Vec::new();
        for one in neighbours.iter().filter(is_new) {
            if carries(&linux::link(one.0)?) && !wanted.contains(one) {
                wanted.push(*one);
            }
        }
        self.ask_these(&wanted, again)
    }

    fn ask_these(&self, wanted: &[Neighbour], again: bool) -> io::Result<()> {
        let states = ask_neighbours(wanted, again, PATIENCE)?;
        let answers = wanted.iter().copied().zip(states);
        self.asked.borrow_mut().extend(answers);
        Ok(())
    }

    /// Returns what is known of a neighbour that was asked and does not answer; None if it answers
    /// or was not asked.
    pub(super) fn silence(&self, neighbour: Neighbour) -> Result<Option<Silence>> {
        let state = self.asked.borrow().get(&neighbour).copied();
        let Some(state) = state.filter(|state| !state.is_well()) else {
            return Ok(None);
        };
        let link = linux::link(neighbour.0)?;
        let mut dead_ports = Vec::new();
        if link.is_bridge {
            let ports = linux::ports_of(neighbour.0)?.into_iter();
            dead_ports.extend(ports.filter(|port| !carries(port)).map(|port| port.name));
        }
        Ok(Some(Silence {
            neighbour: neighbour.1,
            interface: link.name,
            state,
            dead_ports,
        }))
    }

    /// Returns the port of a bridge that leads to a neighbour; None if the bridge does not know it,
    /// even after the neighbour was asked.
    fn port(&self, bridge: u32, neighbour: IpAddr) -> io::Result<Option<u32>> {
        let known = |reach: &Option<Reach>| {
            reach
                .as_ref()
                .and_then(|one| one.port_to(bridge, neighbour))
        };
        if self.reach.borrow().is_none() {
            self.reach.replace(Some(Reach::read()?));
        }
        let port = known(&self.reach.borrow());
        let was_silent = {
            let asked = self.asked.borrow();
            asked
                .get(&(bridge, neighbour))
                .is_some_and(|state| !state.is_well())
        };
        if port.is_some() || was_silent {
            return Ok(port);
        }
        // The neighbour's answer passes the bridge, which learns its port by that.
        self.ask_these(&[(bridge, neighbour)], true)?;
        self.reach.replace(Some(Reach::read()?));
        Ok(known(&self.reach.borrow()))
    }

    /// Returns the interface with this index, with its hooks. For a bridge, returns the bridge's
    /// port that leads to `neighbour` instead, if the bridge knows it.
    pub(super) fn at(
        &self,
        reader: &Reader,
        index: u32,
        neighbour: Option<IpAddr>,
    ) -> Result<HookedInterface> {
        let known = self.known.borrow().get(&index).cloned();
        if let Some(known) = known.filter(|known| !known.link.is_bridge) {
            return Ok(known);
        }
        let link = linux::link(index)?;
        if let Some(neighbour) = neighbour.filter(|_| link.is_bridge)
            && let Some(port) = self.port(index, neighbour)?
        {
            return self.at(reader, port, None);
        }
        let word = reader.interface_word(index)?;
        let stack_index = match word.map_or(0, interface::bridge) {
            0 => link
                .master
                .filter(|_| word.is_some_and(is_port))
                .unwrap_or(index),
            bridge => bridge,
        };
        let place = HookedInterface {
            index,
            hooks: self.attached.states(index)?,
            stack_index,
            stack_name: linux::link(stack_index)?.name,
            xdp: self.attached.foreign_xdp(index)?,
            link,
            verdicts: Vec::new(),
        };
        self.known.borrow_mut().insert(index, place.clone());
        Ok(place)
    }
}

/// Returns whether an interface carries packets.
fn carries(link: &LinkFacts) -> bool {
    link.up && link.carrier
}

/// Returns whether an interface is a port of a bridge. `word`: its entry in the map of interfaces.
fn is_port(word: u64) -> bool {
    interface::bits(word) & (interface::VETH_PORT | interface::BRIDGE_PORT) != 0
}
