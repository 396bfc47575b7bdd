// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The maps of this node's pods, to which packets past the stack are handed. Used by `Datapath`.

use std::collections::HashMap;

use linux::interfaces::PodLink;
use proxy_common::{LocalPod, V4, V6};

use super::Mirror;
use crate::{
    error::DatapathError,
    maps::{OpenMaps, family::Family},
};

/// This node's pods.
pub(crate) struct Pods {
    v4: Mirror<V4, LocalPod>,
    v6: Mirror<V6, LocalPod>,
}

impl Pods {
    /// Starts with what is stored.
    pub(crate) fn adopt(open: &mut OpenMaps) -> Result<Self, DatapathError> {
        Ok(Self {
            v4: Mirror::adopt(open, V4::PODS)?,
            v6: Mirror::adopt(open, V6::PODS)?,
        })
    }
    /// Replaces all pods. Those for which there is no room are reached by the routes.
    pub(crate) fn set(&mut self, links: &[PodLink]) -> Result<(), DatapathError> {
        set(&mut self.v4, links)?;
        set(&mut self.v6, links)
    }
    /// Stores the pods again if the maps hold others; how many differed.
    pub(crate) fn repair(&mut self) -> Result<usize, DatapathError> {
        let (v4, v6) = (self.v4.repair(), self.v6.repair());
        Ok(v4? + v6?)
    }
}

/// Stores one family's difference. What is gone goes first: its interface may be another's by now.
fn set<A: Family>(pods: &mut Mirror<A, LocalPod>, links: &[PodLink]) -> Result<(), DatapathError> {
    let links = links.iter().take(pods.table.capacity() as usize);
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
    pods.remove_others(&wanted)?;
    pods.store(&wanted)
}
