// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which host owns which address: the plan from which a `topology` is built. Pure.

use std::{
    collections::BTreeSet,
    mem::discriminant,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use anyhow::{Context, Result};
use ipnet::IpNet;

/// Which host of a simulated cluster owns which address.
#[derive(Default, Debug, Clone)]
pub struct Layout {
    /// The node's own addresses; the first one of a family is its InternalIP.
    pub node: Vec<IpAddr>,
    /// The addresses of each pod on the node.
    pub pods: Vec<Vec<IpAddr>>,
    /// Addresses of other nodes and their pods.
    pub remote: BTreeSet<IpAddr>,
    /// Addresses of clients outside the cluster.
    pub outside: BTreeSet<IpAddr>,
    /// Addresses that no host owns but some client calls. A packet to them that belongs to no
    /// service must leave the node by its uplink.
    pub unowned: BTreeSet<IpAddr>,
}

/// The owner of an address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Host {
    Node,
    /// Index into [`Layout::pods`].
    Pod(usize),
    Remote,
    Outside,
}

impl Layout {
    /// Returns the owner of an address; None if no host owns it.
    pub fn owner(&self, ip: IpAddr) -> Option<Host> {
        if self.node.contains(&ip) || ip.is_loopback() {
            return Some(Host::Node);
        }
        let mut pods = self.pods.iter();
        if let Some(pod) = pods.position(|addresses| addresses.contains(&ip)) {
            return Some(Host::Pod(pod));
        }
        if self.remote.contains(&ip) {
            return Some(Host::Remote);
        }
        self.outside.contains(&ip).then_some(Host::Outside)
    }

    /// Returns whether every address that `part` names has the same kind of owner here.
    pub fn agrees(&self, part: &Self) -> bool {
        let kind = |layout: &Self, ip| layout.owner(ip).map(|host| discriminant(&host));
        let others = [&part.remote, &part.outside, &part.unowned];
        let addresses = others.into_iter().flatten().copied();
        let mut addresses = addresses.chain(part.pod_addresses());
        addresses.all(|ip| kind(self, ip) == kind(part, ip))
    }

    /// Returns the addresses of all pods on the node.
    pub(super) fn pod_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.pods.iter().flatten().copied()
    }

    /// Returns an address of the subnet that nobody owns or calls and that is not in `taken`. The
    /// search begins at the subnet's low end, or at its high end if `from_end`.
    pub(super) fn spare(&self, subnet: IpNet, from_end: bool, taken: &[IpAddr]) -> Result<IpAddr> {
        let is_free = |ip: &IpAddr| {
            self.owner(*ip).is_none() && !self.unowned.contains(ip) && !taken.contains(ip)
        };
        let candidate = |n: u8| match subnet.network() {
            IpAddr::V4(base) => IpAddr::V4(Ipv4Addr::from_bits(base.to_bits() | u32::from(n))),
            IpAddr::V6(base) => IpAddr::V6(Ipv6Addr::from_bits(base.to_bits() | u128::from(n))),
        };
        let found = match from_end {
            true => (1..255).rev().map(candidate).find(is_free),
            false => (1..255).map(candidate).find(is_free),
        };
        found.with_context(|| format!("no address is left in {subnet} for a gateway"))
    }
}

/// Returns the /24 or /64 around an address.
pub(super) fn subnet(ip: IpAddr) -> IpNet {
    let length = if ip.is_ipv4() { 24 } else { 64 };
    // Cannot fail: 24 is a valid length for IPv4 and 64 for IPv6.
    IpNet::new(ip, length).map_or_else(|_| IpNet::from(ip), |net| net.trunc())
}

/// Returns the address as a prefix of its full length: /32 or /128.
pub(super) fn host(ip: IpAddr) -> IpNet {
    IpNet::from(ip)
}

/// Returns the option for `ip address add` that skips duplicate address detection, empty for IPv4.
/// With the detection, an IPv6 address would not be usable for a second.
pub(super) const fn nodad(ip: IpAddr) -> &'static str {
    if ip.is_ipv6() { " nodad" } else { "" }
}
