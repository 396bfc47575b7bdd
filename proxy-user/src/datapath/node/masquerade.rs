// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The maps of interfaces and of the source addresses that they masquerade with. Used by `Datapath`.

use std::{collections::HashMap, io};

use proxy_common::{
    Addr, V4, V6,
    maps::{self, interface},
    masquerade::MasqueradeSource,
};

use super::repair;
use crate::{
    datapath::{
        error::DatapathError,
        maps::{OpenMaps, tables::Table},
    },
    interfaces::Interface,
};

/// The source addresses that each interface masquerades with, and whether pods are behind it.
pub(crate) struct MasqueradeSources {
    interfaces: Table<u32, u64>,
    sources: Table<u32, MasqueradeSource>,
    shared: Table<u32, u32>,
    stored: HashMap<u32, u64>,
    known: HashMap<(V4, V6), u32>,
    next: u32,
}

impl MasqueradeSources {
    /// Starts with what is stored.
    pub(crate) fn adopt(open: &mut OpenMaps) -> Result<Self, DatapathError> {
        let interfaces: Table<u32, u64> = open.take(maps::INTERFACES, Table::new)?;
        let sources: Table<u32, MasqueradeSource> =
            open.take(maps::MASQUERADE_SOURCES, Table::new)?;
        let shared: Table<u32, u32> = open.take(maps::SHARED_INTERFACES, Table::new)?;
        let stored = interfaces
            .entries()
            .map_err(DatapathError::of_map("read", maps::INTERFACES))?;
        let found = sources
            .entries()
            .map_err(DatapathError::of_map("read", maps::MASQUERADE_SOURCES))?;
        let mut known = HashMap::new();
        let mut next = 1;
        for (index, source) in found {
            let unspecified = (source.v4, source.v6) == (V4::UNSPECIFIED, V6::UNSPECIFIED);
            if index == 0 || !unspecified {
                known.entry((source.v4, source.v6)).or_insert(index);
                next = next.max(index + 1);
            }
        }
        Ok(Self {
            stored: stored.into_iter().collect(),
            interfaces,
            sources,
            shared,
            known,
            next,
        })
    }
    /// Stores an interface's source and whether pods are behind it.
    pub(crate) fn set(&mut self, interface: &Interface) -> Result<(), DatapathError> {
        self.store(interface)
            .map_err(|source| DatapathError::Interface {
                attempt: "store the masquerade source of",
                interface: interface.name.clone(),
                index: interface.index,
                source,
            })
    }
    /// An element of `masq_sources` is written once and never changed, so a packet on its way sees one interface's
    /// addresses, never parts of two.
    fn store(&mut self, interface: &Interface) -> io::Result<()> {
        let source = MasqueradeSource {
            v4: interface.source_v4.map_or(V4::UNSPECIFIED, V4::from),
            v6: interface.source_v6.map_or(V6::UNSPECIFIED, V6::from),
        };
        let index = match self.known.get(&(source.v4, source.v6)) {
            Some(index) => *index,
            None => {
                if self.next >= self.sources.capacity() {
                    return Err(io::Error::other(format!(
                        "the map {} is full ({} different sources since the last cleanup): stop the agent, run \
                         `portolan cleanup` and start it again; packets leave this interface with the \
                         node's address",
                        maps::MASQUERADE_SOURCES,
                        self.sources.capacity()
                    )));
                }
                let index = self.next;
                self.sources.update(&index, &source)?;
                self.next += 1;
                self.known.insert((source.v4, source.v6), index);
                index
            }
        };
        let bit = |set: bool, bit: u32| if set { bit } else { 0 };
        let stored = self.stored.get(&interface.index).copied();
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
            | interface::bits(stored.unwrap_or(0)) & interface::REDIRECTS;
        self.share(interface.index, !interface.leads_to_one_pod())?;
        let word = interface::word(bits, interface.bridge.unwrap_or(0));
        self.write(interface.index, word)
    }
    /// Says whether packets that come in by an interface may leave past the stack. New interfaces may not.
    pub(crate) fn set_redirects(
        &mut self,
        index: u32,
        redirects: bool,
    ) -> Result<(), DatapathError> {
        let Some(word) = self.stored.get(&index).copied() else {
            return Ok(());
        };
        let flag = interface::word(interface::REDIRECTS, 0);
        let word = if redirects { word | flag } else { word & !flag };
        self.write(index, word)
            .map_err(DatapathError::of_map("write", maps::INTERFACES))
    }
    fn write(&mut self, index: u32, word: u64) -> io::Result<()> {
        if self.stored.get(&index) != Some(&word) {
            self.interfaces.update(&index, &word)?;
            self.stored.insert(index, word);
        }
        Ok(())
    }
    /// Notes whether flows of an interface are known by it or not. Of two shared interfaces with one slot the latter gets it;
    /// the packets of a flow through the other must keep coming in by that one.
    fn share(&self, interface: u32, shared: bool) -> io::Result<()> {
        let slot = interface % maps::SHARED_INTERFACE_SLOTS;
        let stored = self.shared.lookup(&slot)?.unwrap_or(0);
        if shared && stored != interface {
            self.shared.update(&slot, &interface)
        } else if !shared && stored == interface {
            self.shared.update(&slot, &0)
        } else {
            Ok(())
        }
    }
    /// Forgets an interface.
    pub(crate) fn remove(&mut self, interface: u32) -> Result<(), DatapathError> {
        self.interfaces
            .delete(&interface)
            .map_err(DatapathError::of_map("write", maps::INTERFACES))?;
        self.stored.remove(&interface);
        self.share(interface, false)
            .map_err(DatapathError::of_map("write", maps::SHARED_INTERFACES))
    }
    /// Stores the properties and sources of interfaces again if the maps hold others; how many differed.
    pub(crate) fn repair(&mut self) -> Result<usize, DatapathError> {
        let interfaces = repair(&self.interfaces, &self.stored)
            .map_err(DatapathError::of_map("check", maps::INTERFACES))?;
        let mut sources = 0;
        let failed = DatapathError::of_map("check", maps::MASQUERADE_SOURCES);
        for ((v4, v6), index) in &self.known {
            let wanted = MasqueradeSource { v4: *v4, v6: *v6 };
            if self.sources.lookup(index).map_err(failed)? != Some(wanted) {
                self.sources.update(index, &wanted).map_err(failed)?;
                sources += 1;
            }
        }
        Ok(interfaces + sources)
    }
    /// Indices of the interfaces that have an element.
    pub(crate) fn interfaces(&self) -> Vec<u32> {
        self.stored.keys().copied().collect()
    }
}
