// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The maps of interfaces and of their masquerade source addresses. Used by `Datapath`.

use std::{collections::HashMap, io};

use linux::interfaces::Interface;
use proxy_common::{
    Addr, V4, V6,
    maps::{self, interface},
    masquerade::{self, MasqueradeSources},
};

use super::Mirror;
use crate::{
    Datapath,
    error::DatapathError,
    maps::{PinnedMaps, family::Family, tables::Table},
};

/// The maps of interfaces. For each interface they have a word of flags, such as whether pods are
/// behind it, and its masquerade source addresses.
pub(crate) struct NodeInterfaces {
    interfaces: Mirror<u32, u64>,
    sources: Table<u32, MasqueradeSources>,
    shared: Table<u32, u32>,
    known: HashMap<MasqueradeSources, u32>,
    next: u32,
}

impl NodeInterfaces {
    pub(crate) fn adopt(open: &PinnedMaps) -> Result<Self, DatapathError> {
        let interfaces = Mirror::adopt(open, maps::INTERFACES)?;
        let sources: Table<u32, MasqueradeSources> =
            open.take(maps::MASQUERADE_SOURCES, Table::new)?;
        let shared: Table<u32, u32> = open.take(maps::SHARED_INTERFACES, Table::new)?;
        let found = sources
            .entries()
            .map_err(DatapathError::of_map("read", maps::MASQUERADE_SOURCES))?;
        let mut known = HashMap::new();
        let mut next = NO_SOURCE + 1;
        for (index, source) in found {
            if index != NO_SOURCE && has_any(&source) {
                known.entry(source).or_insert(index);
                next = next.max((index + 1) % sources.capacity());
            }
        }
        Ok(Self {
            interfaces,
            sources,
            shared,
            known,
            next,
        })
    }
    pub(crate) fn set(&mut self, interface: &Interface) -> Result<(), DatapathError> {
        self.store(interface).map_err(|source| {
            let attempt = "store the masquerade source of";
            DatapathError::of_interface(attempt, &interface.name, interface.index, source)
        })
    }
    /// Does the work of [`Self::set`]. Never changes a list of addresses that an interface uses, so
    /// that no packet sees parts of two lists. Unused lists are overwritten in turn, so that each
    /// stays unchanged for long.
    fn store(&mut self, interface: &Interface) -> io::Result<()> {
        let source = sources_of(interface);
        let index = match self.known.get(&source) {
            _ if !has_any(&source) => NO_SOURCE,
            Some(index) => *index,
            None => {
                let index = self.free_index().ok_or_else(|| {
                    io::Error::other(format!(
                        "the map {} is full: {} interfaces have addresses of their own; packets leave this interface with \
                         the node's address",
                        maps::MASQUERADE_SOURCES,
                        self.sources.capacity() - 1
                    ))
                })?;
                self.sources.update(&index, &source)?;
                self.known.retain(|_, known| *known != index);
                self.known.insert(source, index);
                index
            }
        };
        let bit = |set: bool, bit: u32| if set { bit } else { 0 };
        let stored = self.interfaces.stored.get(&interface.index).copied();
        let bits = index
            | bit(interface.pods, interface::PODS)
            | bit(interface.veth_port, interface::VETH_PORT)
            | bit(
                interface.bridge_port || interface.switch_port,
                interface::BRIDGE_PORT,
            )
            | bit(!interface.link_layer, interface::NO_LINK_LAYER)
            | bit(interface.vlans, interface::VLANS)
            | bit(interface.isolated, interface::ISOLATED)
            | bit(!interface.leads_to_one_pod(), interface::SHARED)
            | interface::bits(stored.unwrap_or(0)) & interface::REDIRECTS;
        let word = interface::word(bits, interface.bridge.unwrap_or(0));
        self.interfaces.update(interface.index, word)?;
        self.share(interface.index)
    }
    /// Returns the next index in the map of source addresses that no interface uses; `None` if all
    /// are used.
    fn free_index(&mut self) -> Option<u32> {
        let capacity = self.sources.capacity();
        for _ in 0..capacity {
            let index = self.next;
            self.next = (index + 1) % capacity;
            let has = |word: &u64| interface::bits(*word) & interface::SOURCE == index;
            if index != NO_SOURCE && !self.interfaces.stored.values().any(has) {
                return Some(index);
            }
        }
        None
    }
    /// Updates the slot of the map `shared_ifaces` that an interface belongs to. Must be called
    /// after the interface's word was stored. For the slot's value see [`slot_of`].
    fn share(&self, interface: u32) -> io::Result<()> {
        let slot = interface % maps::SHARED_INTERFACE_SLOTS;
        let wanted = slot_of(slot, &self.interfaces.stored);
        if self.shared.lookup(&slot)? != Some(wanted) {
            self.shared.update(&slot, &wanted)?;
        }
        Ok(())
    }
    pub(crate) fn remove(&mut self, interface: u32) -> Result<(), DatapathError> {
        self.interfaces.remove(&interface)?;
        self.share(interface)
            .map_err(DatapathError::of_map("write", maps::SHARED_INTERFACES))
    }
    pub(crate) fn repair(&mut self) -> Result<usize, DatapathError> {
        let mut differed = self.interfaces.repair()?;
        let failed = DatapathError::of_map("check", maps::MASQUERADE_SOURCES);
        for (wanted, index) in &self.known {
            if self.sources.lookup(index).map_err(failed)?.as_ref() != Some(wanted) {
                self.sources.update(index, wanted).map_err(failed)?;
                differed += 1;
            }
        }
        let failed = DatapathError::of_map("check", maps::SHARED_INTERFACES);
        for (slot, found) in self.shared.entries().map_err(failed)? {
            let wanted = slot_of(slot, &self.interfaces.stored);
            if found != wanted {
                self.shared.update(&slot, &wanted).map_err(failed)?;
                differed += 1;
            }
        }
        Ok(differed)
    }
    pub(crate) fn interfaces(&self) -> impl Iterator<Item = u32> {
        self.interfaces.keys()
    }
}

impl Datapath {
    /// Sets whether packets from an attached interface may be redirected past the stack. By default
    /// they may not. Has an effect with the setting `forwarding: auto` only.
    pub fn set_redirects(&mut self, index: u32, redirects: bool) -> Result<(), DatapathError> {
        let interfaces = &mut self.masquerade.interfaces;
        let Some(word) = interfaces.stored.get(&index).copied() else {
            return Ok(());
        };
        let flag = interface::word(interface::REDIRECTS, 0);
        let word = if redirects { word | flag } else { word & !flag };
        let stored = interfaces.update(index, word);
        stored.map_err(DatapathError::of_map("write", maps::INTERFACES))
    }
}

/// The index in the map `masq_addresses` for interfaces without an address.
const NO_SOURCE: u32 = 0;

/// Returns the value that a slot of the map `shared_ifaces` must have: the index of the only shared
/// interface in it, 0 if there is none, [`maps::SEVERAL_SHARED`] if there are several. `words` has
/// the flags of each interface, by index.
fn slot_of(slot: u32, words: &HashMap<u32, u64>) -> u32 {
    let mut shared = words.iter().filter(|(index, word)| {
        *index % maps::SHARED_INTERFACE_SLOTS == slot
            && interface::bits(**word) & interface::SHARED != 0
    });
    match (shared.next(), shared.next()) {
        (Some((index, _)), None) => *index,
        (None, _) => 0,
        _ => maps::SEVERAL_SHARED,
    }
}

fn has_any(sources: &MasqueradeSources) -> bool {
    let MasqueradeSources { v4, v6 } = sources;
    v4.0[0].address != V4::UNSPECIFIED || v6.0[0].address != V6::UNSPECIFIED
}

/// Returns an interface's masquerade source addresses in the programs' format.
fn sources_of(interface: &Interface) -> MasqueradeSources {
    fn fill<A: Family>(to: &mut [masquerade::Source<A>], interface: &Interface) {
        let sources = interface.sources.iter().filter_map(|source| {
            Some(masquerade::Source {
                address: A::of_ip(source.address)?,
                subnet: A::prefix(source.subnet)?,
            })
        });
        to.iter_mut().zip(sources).for_each(|(to, from)| *to = from);
    }
    let mut all = MasqueradeSources::NONE;
    fill(&mut all.v4.0, interface);
    fill(&mut all.v6.0, interface);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_holds_its_only_shared_interface_or_a_mark_for_several() {
        const SHARED: u64 = interface::word(interface::SHARED, 0);
        let (eth, tunnel, pod) = (2, 2 + maps::SHARED_INTERFACE_SLOTS, 2 + (7 << 12));
        let mut words = HashMap::from([(pod, 0)]);
        assert_eq!(slot_of(2, &words), 0);
        words.insert(eth, SHARED);
        assert_eq!(slot_of(2, &words), eth);
        words.insert(tunnel, SHARED);
        assert_eq!(slot_of(2, &words), maps::SEVERAL_SHARED);
        words.remove(&eth);
        assert_eq!((slot_of(2, &words), slot_of(3, &words)), (tunnel, 0));
    }
}
