// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which pods of this node are really gone: their link is gone, and nothing has their address now.
//! Remembers by which interface each pod was reached. Called by `attachments`; the caller asks
//! whether an EndpointSlice lists the address.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use control::tracker::ClusterState;
use linux::{
    Routed,
    interfaces::{Interface, PodLink, is_link_local},
};
use tokio::time::Instant;

/// How long a pod's link must have been gone. An interface may be replaced, and a list of
/// interfaces and one of neighbours do not change at the same moment.
const SETTLED: Duration = Duration::from_secs(3);
/// How long connections to a pod's address are ended once the pod is gone: a walk through full
/// tables of flows and sockets takes some eight seconds.
const ENDING: Duration = Duration::from_secs(30);
/// How long a pod without its link is remembered. By then nobody needs to be told that it has gone,
/// and a pod of another node may get its address.
const FORGOTTEN: Duration = Duration::from_secs(600);
/// How many pods are remembered. More than a node has; a flood of neighbours must not fill memory.
const MOST: usize = 4096;

/// The pods of this node that the agent has seen, by address.
#[derive(Debug, Default)]
pub(super) struct GonePods {
    seen: BTreeMap<IpAddr, Seen>,
}

/// How a pod was reached.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// The host's end of the pod's link. The kernel does not give its index to another one.
    interface: u32,
    /// The bridge that the interface was a port of.
    bridge: Option<u32>,
    /// Since when the interface has been gone; `None` while it is there.
    since: Option<Instant>,
    /// When the pod was found to be gone.
    gone: Option<Instant>,
}

impl GonePods {
    /// Takes in the links of pods and the interfaces that are there now.
    pub(super) fn observe(&mut self, links: &[PodLink], interfaces: &[Interface], now: Instant) {
        let by_index: BTreeMap<_, _> = interfaces.iter().map(|one| (one.index, one)).collect();
        for link in links {
            // An uplink of a node that is a container is such a link, too, but leads to many.
            let interface = by_index.get(&link.interface);
            let Some(interface) = interface.filter(|one| one.leads_to_one_pod()) else {
                continue;
            };
            if self.seen.len() < MOST || self.seen.contains_key(&link.address) {
                let seen = Seen {
                    interface: link.interface,
                    bridge: interface.bridge,
                    since: None,
                    gone: None,
                };
                self.seen.insert(link.address, seen);
            }
        }
        for seen in self.seen.values_mut() {
            if by_index.contains_key(&seen.interface) {
                (seen.since, seen.gone) = (None, None);
            } else {
                seen.since.get_or_insert(now);
            }
        }
    }

    /// Returns the addresses of pods that are gone, to which connections are to be ended now.
    ///
    /// A pod counts as gone only if its link has gone for a while, no other link has its address,
    /// and at its bridge each later port has a known address of the family: one without may be a
    /// new pod with this very address.
    pub(super) fn gone(
        &mut self,
        links: &[PodLink],
        interfaces: &[Interface],
        now: Instant,
        ask: &dyn Asked,
    ) -> BTreeSet<IpAddr> {
        let settled = |seen: &Seen| seen.since.is_some_and(|since| now - since >= SETTLED);
        let candidates = self.seen.iter().filter(|(_, seen)| settled(seen));
        let candidates: BTreeSet<_> = candidates.map(|(address, _)| *address).collect();
        if candidates.is_empty() {
            return candidates;
        }
        let listed = ask.listed(&candidates);
        let mut gone = BTreeSet::new();
        for address in &candidates {
            match listed.get(address) {
                // A pod of another node has the address by now.
                Some(true) => {
                    self.seen.remove(address);
                    continue;
                }
                Some(false) => continue,
                None => {}
            }
            let Some(seen) = self.seen.get_mut(address) else {
                continue;
            };
            let may_have_it = |port: &&Interface| {
                let is_known = |link: &&PodLink| {
                    link.interface == port.index
                        && link.address.is_ipv4() == address.is_ipv4()
                        && !is_link_local(link.address)
                };
                port.index > seen.interface && !links.iter().any(|link| is_known(&link))
            };
            let mut ports = interfaces
                .iter()
                .filter(|port| port.bridge.is_some() && port.bridge == seen.bridge);
            let is_in_doubt = ports.any(|port| may_have_it(&port))
                || ask.exists(seen.interface)
                || ask.leads_to_a_pod(*address);
            if !is_in_doubt {
                seen.gone.get_or_insert(now);
                gone.insert(*address);
            }
        }
        let is_over = |seen: &Seen| {
            seen.gone.is_some_and(|gone| now - gone >= ENDING)
                || seen.since.is_some_and(|since| now - since >= FORGOTTEN)
        };
        self.seen.retain(|_, seen| !is_over(seen));
        gone
    }
}

/// What [`GonePods::gone`] asks the kernel and the cluster state.
pub(super) trait Asked {
    /// Which of these addresses some EndpointSlice lists, ready or not; each with whether one of
    /// them says that it is on another node.
    fn listed(&self, addresses: &BTreeSet<IpAddr>) -> BTreeMap<IpAddr, bool>;
    /// Whether an interface with this index exists.
    fn exists(&self, interface: u32) -> bool;
    /// Whether the route to the address leads to a pod by an interface of its own, or the address
    /// is the node's.
    fn leads_to_a_pod(&self, address: IpAddr) -> bool;
}

/// The kernel and the cluster state as they are now.
pub(super) struct Present<'a> {
    pub(super) cluster: &'a ClusterState,
    pub(super) interfaces: &'a [Interface],
}

impl Asked for Present<'_> {
    fn listed(&self, addresses: &BTreeSet<IpAddr>) -> BTreeMap<IpAddr, bool> {
        self.cluster.listed(addresses)
    }
    fn exists(&self, interface: u32) -> bool {
        linux::has_link(interface)
    }
    fn leads_to_a_pod(&self, address: IpAddr) -> bool {
        match linux::route(address, None) {
            Ok(Routed::Leaves { interface, .. }) => {
                let mut all = self.interfaces.iter();
                // The uplink of a node that is a container is a veth, too.
                all.any(|one| one.index == interface && one.leads_to_one_pod())
            }
            Ok(Routed::Here) | Err(_) => true,
            Ok(_) => false,
        }
    }
}

#[cfg(test)]
#[path = "gone_pods_tests.rs"]
mod tests;
