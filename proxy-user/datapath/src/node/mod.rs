// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The maps that tell the programs about the node. In: settings, addresses, interfaces, pods,
//! excepted cgroups. Out: map elements, of which only changed ones are written. Called by
//! `Datapath`; `store` changes some fields of the settings.

mod masquerade;
mod settings;

use std::{
    collections::{HashMap, HashSet},
    hash::Hash,
    io,
    net::IpAddr,
    time::Duration,
};

use linux::{
    Plain,
    interfaces::{Mac, PodLink},
};
use proxy_common::{
    LocalPod, V4, V6,
    carried::{KEYS, Key},
    maps::{self, generation, interface, node_address},
    xdp::Uplink,
};

use crate::{
    Datapath,
    error::DatapathError,
    maps::{PinnedMaps, family::Family, tables::Table},
};
pub(super) use masquerade::NodeInterfaces;
pub(super) use settings::{NewAddresses, SettingsCell};

/// A map, with a copy in this process of what was last stored in it.
pub(super) struct Mirror<K, V> {
    name: &'static str,
    table: Table<K, V>,
    stored: HashMap<K, V>,
}

impl<K: Plain + Eq + Hash, V: Plain + PartialEq> Mirror<K, V> {
    pub(super) fn adopt(open: &PinnedMaps, name: &'static str) -> Result<Self, DatapathError> {
        let table: Table<K, V> = open.take(name, Table::new)?;
        let stored = table
            .entries()
            .map_err(DatapathError::of_map("read", name))?;
        Ok(Self {
            name,
            table,
            stored: stored.into_iter().collect(),
        })
    }
    /// Stores an element if it is new or differs.
    fn update(&mut self, key: K, value: V) -> io::Result<()> {
        if self.stored.get(&key) != Some(&value) {
            self.table.update(&key, &value)?;
            self.stored.insert(key, value);
        }
        Ok(())
    }
    fn remove(&mut self, key: &K) -> Result<(), DatapathError> {
        let removed = self.table.delete(key);
        removed.map_err(DatapathError::of_map("write", self.name))?;
        self.stored.remove(key);
        Ok(())
    }
    /// Stores those wanted elements that are new or differ.
    fn store(&mut self, wanted: &HashMap<K, V>) -> Result<(), DatapathError> {
        let mut wanted = wanted.iter();
        wanted
            .try_for_each(|(key, value)| self.update(*key, *value))
            .map_err(DatapathError::of_map("write", self.name))
    }
    fn remove_others(&mut self, wanted: &HashMap<K, V>) -> Result<(), DatapathError> {
        let gone = self.stored.keys().filter(|key| !wanted.contains_key(key));
        let gone: Vec<K> = gone.copied().collect();
        gone.iter().try_for_each(|key| self.remove(key))
    }
    /// Makes the map contain exactly these elements. Removals come first, so that there is space.
    pub(super) fn set(&mut self, wanted: &HashMap<K, V>) -> Result<(), DatapathError> {
        self.remove_others(wanted)?;
        self.store(wanted)
    }
    /// Restores the map if somebody else has changed it; returns how many elements differed.
    pub(super) fn repair(&self) -> Result<usize, DatapathError> {
        let failed = DatapathError::of_map("check", self.name);
        let found = self.table.entries().map_err(failed)?;
        let found: HashMap<K, V> = found.into_iter().collect();
        let mut count = 0;
        let mut stored = self.stored.iter();
        while let Some((key, value)) = stored.find(|(key, value)| found.get(key) != Some(value)) {
            self.table.update(key, value).map_err(failed)?;
            count += 1;
        }
        for key in found.keys().filter(|key| !self.stored.contains_key(key)) {
            self.table.delete(key).map_err(failed)?;
            count += 1;
        }
        Ok(count)
    }
    pub(super) fn keys(&self) -> impl Iterator<Item = K> {
        self.stored.keys().copied()
    }
}

/// Two maps whose keys are addresses, one for each family.
pub(super) struct ByAddress<V> {
    v4: Mirror<V4, V>,
    v6: Mirror<V6, V>,
}

impl<V: Plain + PartialEq> ByAddress<V> {
    pub(super) fn adopt(
        open: &PinnedMaps,
        v4: &'static str,
        v6: &'static str,
    ) -> Result<Self, DatapathError> {
        Ok(Self {
            v4: Mirror::adopt(open, v4)?,
            v6: Mirror::adopt(open, v6)?,
        })
    }
    pub(super) fn repair(&self) -> Result<usize, DatapathError> {
        let (v4, v6) = (self.v4.repair(), self.v6.repair());
        Ok(v4? + v6?)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeAddress {
    pub address: IpAddr,
    /// True if node ports are served on this address.
    pub node_ports: bool,
}

impl Datapath {
    /// Replaces the node's addresses in the maps.
    pub fn set_node_addresses(&mut self, addresses: &[NodeAddress]) -> Result<(), DatapathError> {
        set_addresses(&mut self.addresses.v4, addresses)?;
        set_addresses(&mut self.addresses.v6, addresses)
    }
    /// Replaces the pods to which packets are redirected past the stack. All other pods, and those
    /// beyond a map's capacity, are reached through the routes.
    pub fn set_pods(&mut self, links: &[PodLink]) -> Result<(), DatapathError> {
        set_pods(&mut self.pods.v4, links)?;
        set_pods(&mut self.pods.v6, links)
    }
    /// Replaces the link-layer addresses of the node's interfaces. At a bridge's port, flows begin
    /// only by frames to one of them.
    pub fn set_macs(&mut self, macs: impl Iterator<Item = Mac>) -> Result<(), DatapathError> {
        let macs = macs.map(|mac| (interface::mac(mac), 1));
        self.macs.set(&macs.collect())
    }
    /// Makes the socket hooks ignore the sockets of these cgroups (by id) and of the cgroups below
    /// them. The tc programs translate their packets instead.
    pub fn set_socket_exceptions(&mut self, cgroups: &HashSet<u64>) -> Result<(), DatapathError> {
        let cgroups = cgroups.iter().map(|id| (*id, 1));
        self.exceptions.set(&cgroups.collect())
    }
    /// Stores the keys by which tokens of outer headers are made and checked.
    pub fn set_header_keys(&mut self, keys: &[Key; KEYS as usize]) -> Result<(), DatapathError> {
        let failed = DatapathError::of_map("write", maps::HEADER_KEYS);
        (0..)
            .zip(keys)
            .try_for_each(|(number, key)| self.header_keys.update(&number, key).map_err(failed))
    }
    /// Stores what the XDP program may do at the interface with this index; `None` removes it: the
    /// interface is no longer an uplink with XDP.
    pub(super) fn set_uplink(
        &mut self,
        index: u32,
        uplink: Option<Uplink>,
    ) -> Result<(), DatapathError> {
        if self.uplinks.stored.get(&index).copied() == uplink.map(|word| word.0) {
            return Ok(());
        }
        match uplink {
            Some(word) => {
                let stored = self.uplinks.update(index, word.0);
                stored.map_err(DatapathError::of_map("write", maps::UPLINKS))?;
            }
            None => self.uplinks.remove(&index)?,
        }
        self.begin_route_epoch()
    }
    /// Makes XDP look up its next hops again; to be called when routes, neighbours or interfaces
    /// have changed.
    pub fn begin_route_epoch(&mut self) -> Result<(), DatapathError> {
        let failed = DatapathError::of_map("write", maps::ROUTE_EPOCH);
        let epoch = self.route_epoch.lookup(&0).map_err(failed)?;
        let next = epoch.unwrap_or_default().wrapping_add(1);
        self.route_epoch.update(&0, &next).map_err(failed)
    }
    /// Has the programs, also those of older maps, serve for this time more without an agent, or
    /// for ever. Programs that have given way to others begin again only if `anew` is true.
    pub fn serve_for(&self, time: Option<Duration>, anew: bool) -> Result<(), DatapathError> {
        let failed = DatapathError::of_map("write", maps::DRAINED);
        let word = self.drained.lookup(&0).map_err(failed)?;
        let (word, now) = (word.unwrap_or_default(), linux::now());
        let until = time.map(|time| now + time.as_nanos() as u64);
        let wanted = generation::serving_until(word, until);
        if wanted != word && (anew || !generation::is_abandoned(word, || now)) {
            self.drained.update(&0, &wanted).map_err(failed)?;
        }
        let old = self.succession.as_ref();
        old.map_or(Ok(()), |old| old.serve_until(until))
    }
}

/// Makes the map of one family contain exactly these addresses. Adds new ones before it removes
/// others.
fn set_addresses<A: Family>(
    known: &mut Mirror<A, u32>,
    addresses: &[NodeAddress],
) -> Result<(), DatapathError> {
    let mut wanted: HashMap<A, u32> = HashMap::new();
    for address in addresses {
        if let Some(key) = A::of_ip(address.address) {
            let bits = u32::from(address.node_ports) * node_address::NODE_PORT;
            *wanted.entry(key).or_default() |= bits;
        }
    }
    known.store(&wanted)?;
    known.remove_others(&wanted)
}

/// Makes the map of one family contain exactly these pods. Removals come first: the interface of a
/// removed pod may belong to another pod by now.
fn set_pods<A: Family>(
    pods: &mut Mirror<A, LocalPod>,
    links: &[PodLink],
) -> Result<(), DatapathError> {
    let links = links.iter().take(pods.table.capacity() as usize);
    let wanted = links.filter_map(|link| {
        let address = A::of_ip(link.address)?;
        let pod = LocalPod {
            check: 0,
            interface: link.interface,
            mtu: link.mtu,
            destination: link.destination,
            source: link.source,
        };
        Some((address, pod.sealed(address)))
    });
    pods.set(&wanted.collect())
}
