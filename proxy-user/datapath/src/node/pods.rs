// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The maps of this node's pods, to which packets are redirected past the network stack. Used by
//! `Datapath`.

use std::collections::HashMap;

use linux::interfaces::PodLink;
use proxy_common::LocalPod;

use super::{ByAddress, Mirror};
use crate::{error::DatapathError, maps::family::Family};

/// The maps of this node's pods, one for each family.
pub(crate) type Pods = ByAddress<LocalPod>;

impl Pods {
    /// Makes the maps contain exactly these pods. Pods beyond a map's capacity are left out:
    /// packets reach them through the kernel's routes.
    pub(crate) fn set(&mut self, links: &[PodLink]) -> Result<(), DatapathError> {
        set(&mut self.v4, links)?;
        set(&mut self.v6, links)
    }
}

/// Makes the map of one family contain exactly these pods. Removals come first: the interface of a
/// removed pod may belong to another pod by now.
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
    pods.set(&wanted)
}
