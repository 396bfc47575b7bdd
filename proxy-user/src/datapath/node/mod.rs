// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the programs know about the node: settings, its addresses, what interfaces masquerade with.
//! Used by `Datapath`.

use std::{collections::HashMap, io, net::IpAddr};

use proxy_common::{
    Addr, Prefix, Settings, V4, V6,
    maps::{interface, node_address},
    masquerade::MasqueradeSource,
    settings::RANGES,
};

use crate::{
    datapath::maps::{
        family::{Family, cover, join},
        tables::Table,
    },
    interfaces::Interface,
};

/// An address of this node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeAddress {
    pub address: IpAddr,
    /// Node ports are served on it.
    pub node_ports: bool,
}

/// The one element of `settings`.
pub(crate) struct SettingsCell {
    table: Table<u32, Settings>,
    stored: Settings,
}

impl SettingsCell {
    /// Takes over what is stored; `pressure` starts calm.
    pub(crate) fn adopt(table: Table<u32, Settings>) -> io::Result<Self> {
        let found = table.lookup(&0)?.unwrap_or(Settings::EMPTY);
        let mut cell = Self {
            table,
            stored: found,
        };
        let mut wanted = found;
        // A new map is all zero, whose ranges would hold every address.
        if found.services_v4.mask == V4::UNSPECIFIED && found.services_v6.mask == V6::UNSPECIFIED {
            wanted = Settings::EMPTY;
        }
        wanted.pressure = Settings::CALM;
        cell.store(wanted)?;
        Ok(cell)
    }
    fn store(&mut self, settings: Settings) -> io::Result<bool> {
        if settings == self.stored {
            return Ok(false);
        }
        self.table.update(&0, &settings)?;
        self.stored = settings;
        Ok(true)
    }
    /// Replaces all that the datapath does not keep itself; whether anything was stored.
    pub(crate) fn set(&mut self, settings: &Settings) -> io::Result<bool> {
        fn widened<A: Family>(range: Prefix<A>, by: &[Prefix<A>; RANGES]) -> Prefix<A> {
            by.iter().fold(range, |range, by| join(range, *by))
        }
        self.store(Settings {
            pressure: self.stored.pressure,
            services_v4: widened(self.stored.services_v4, &settings.allocated_v4),
            services_v6: widened(self.stored.services_v6, &settings.allocated_v6),
            ..*settings
        })
    }
    /// Says how full the flow tables are.
    pub(crate) fn set_pressure(&mut self, pressure: u32) -> io::Result<bool> {
        self.store(Settings {
            pressure,
            ..self.stored
        })
    }
    pub(crate) fn pressure(&self) -> u32 {
        self.stored.pressure
    }
    /// Widens the ranges of cluster IPs; they never shrink, for connections outlive services.
    pub(crate) fn cover(&mut self, v4: &[V4], v6: &[V6]) -> io::Result<bool> {
        fn widened<A: Family>(range: Prefix<A>, addresses: &[A]) -> Prefix<A> {
            addresses
                .iter()
                .fold(range, |range, address| cover(range, *address))
        }
        self.store(Settings {
            services_v4: widened(self.stored.services_v4, v4),
            services_v6: widened(self.stored.services_v6, v6),
            ..self.stored
        })
    }
}

/// The node's addresses of one family.
pub(crate) struct AddressSet<A> {
    table: Table<A, u32>,
    stored: HashMap<A, u32>,
}

impl<A: Family> AddressSet<A> {
    pub(crate) fn adopt(table: Table<A, u32>) -> io::Result<Self> {
        let stored = table.entries()?.into_iter().collect();
        Ok(Self { table, stored })
    }
    /// Stores the difference: new addresses first.
    pub(crate) fn set(&mut self, addresses: &[NodeAddress]) -> io::Result<()> {
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
                self.table.update(address, bits)?;
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
            self.table.delete(&address)?;
            self.stored.remove(&address);
        }
        Ok(())
    }
}

/// Which source addresses each interface masquerades with, and which ones pods are behind.
pub(crate) struct MasqueradeSources {
    interfaces: Table<u32, u32>,
    sources: Table<u32, MasqueradeSource>,
    stored: HashMap<u32, u32>,
    known: HashMap<(V4, V6), u32>,
    next: u32,
}

impl MasqueradeSources {
    pub(crate) fn adopt(
        interfaces: Table<u32, u32>,
        sources: Table<u32, MasqueradeSource>,
    ) -> io::Result<Self> {
        let mut known = HashMap::new();
        let mut next = 1;
        for (index, source) in sources.entries()? {
            let unspecified = (source.v4, source.v6) == (V4::UNSPECIFIED, V6::UNSPECIFIED);
            if index == 0 || !unspecified {
                known.entry((source.v4, source.v6)).or_insert(index);
                next = next.max(index + 1);
            }
        }
        Ok(Self {
            stored: interfaces.entries()?.into_iter().collect(),
            interfaces,
            sources,
            known,
            next,
        })
    }
    /// Stores an interface's source and whether pods are behind it. An entry of `masq_sources` is written once and never changed, so a
    /// packet on its way sees one interface's addresses, never parts of two.
    pub(crate) fn set(&mut self, interface: &Interface) -> io::Result<()> {
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
                        proxy_common::maps::MASQUERADE_SOURCES,
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
        let known = index
            | bit(interface.pods, interface::PODS)
            | bit(interface.veth_port, interface::VETH_PORT)
            | bit(!interface.link_layer, interface::NO_LINK_LAYER);
        if self.stored.get(&interface.index) != Some(&known) {
            self.interfaces.update(&interface.index, &known)?;
            self.stored.insert(interface.index, known);
        }
        Ok(())
    }
    pub(crate) fn remove(&mut self, interface: u32) -> io::Result<()> {
        self.interfaces.delete(&interface)?;
        self.stored.remove(&interface);
        Ok(())
    }
    /// Interfaces that have an entry.
    pub(crate) fn interfaces(&self) -> Vec<u32> {
        self.stored.keys().copied().collect()
    }
}
