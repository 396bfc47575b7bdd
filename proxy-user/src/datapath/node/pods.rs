// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The maps of this node's pods, to which packets past the stack are handed. Used by `Datapath`.

use std::collections::HashMap;

use proxy_common::{LocalPod, V4, V6};

use super::repair;
use crate::{
    datapath::{
        error::DatapathError,
        maps::{OpenMaps, family::Family, tables::Table},
    },
    interfaces::PodLink,
};

/// This node's pods.
pub(crate) struct Pods {
    v4: PodSet<V4>,
    v6: PodSet<V6>,
}

impl Pods {
    /// Starts with what is stored.
    pub(crate) fn adopt(open: &mut OpenMaps) -> Result<Self, DatapathError> {
        Ok(Self {
            v4: PodSet::adopt(open)?,
            v6: PodSet::adopt(open)?,
        })
    }
    /// Replaces all pods. Those for which there is no room are reached by the routes.
    pub(crate) fn set(&mut self, links: &[PodLink]) -> Result<(), DatapathError> {
        self.v4.set(links)?;
        self.v6.set(links)
    }
    /// Stores the pods again if the maps hold others; how many differed.
    pub(crate) fn repair(&mut self) -> Result<usize, DatapathError> {
        let v4 = repair(&self.v4.table, &self.v4.stored);
        let v6 = repair(&self.v6.table, &self.v6.stored);
        let count = v4.map_err(DatapathError::of_map("check", V4::PODS))?;
        Ok(count + v6.map_err(DatapathError::of_map("check", V6::PODS))?)
    }
}

/// The pods' addresses of one family.
struct PodSet<A> {
    table: Table<A, LocalPod>,
    stored: HashMap<A, LocalPod>,
}

impl<A: Family> PodSet<A> {
    fn adopt(open: &mut OpenMaps) -> Result<Self, DatapathError> {
        let table: Table<A, LocalPod> = open.take(A::PODS, Table::new)?;
        let stored = table
            .entries()
            .map_err(DatapathError::of_map("read", A::PODS))?;
        Ok(Self {
            table,
            stored: stored.into_iter().collect(),
        })
    }
    /// Stores the difference. What is gone goes first: its interface may be another's by now.
    fn set(&mut self, links: &[PodLink]) -> Result<(), DatapathError> {
        let failed = DatapathError::of_map("write", A::PODS);
        let links = links.iter().take(self.table.capacity() as usize);
        let wanted: HashMap<A, LocalPod> = links
            .filter_map(|link| {
                let address = A::of_ip(link.address)?;
                let pod = LocalPod {
                    check: 0,
                    interface: link.interface,
                    mtu: link.mtu,
                    destination: link.destination,
                    source: link.source,
                };
                Some((address, pod.sealed(address)))
            })
            .collect();
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
        for (address, pod) in wanted {
            if self.stored.get(&address) != Some(&pod) {
                self.table.update(&address, &pod).map_err(failed)?;
                self.stored.insert(address, pod);
            }
        }
        Ok(())
    }
}
