// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The interfaces and addresses of this network namespace, by rtnetlink, followed as they come and go.
//! Says which interfaces the programs are attached to; `agent` hands them to `datapath`.

mod netlink;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::glob;

pub use netlink::{Interfaces, InterfacesError};

/// What an interface is to us.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum InterfaceKind {
    /// Leads out of the node.
    Uplink,
    /// The host's end of a pod's veth, routed.
    PodSide,
    /// A port of a bridge.
    BridgePort,
    Tunnel,
    /// A bridge's own device: never attached to.
    Bridge,
    Loopback,
    Other,
}

/// One interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    pub index: u32,
    pub name: String,
    pub kind: InterfaceKind,
    /// Packets carry an Ethernet header.
    pub link_layer: bool,
    /// A veth that is a bridge's port.
    pub veth_port: bool,
    pub addresses: Vec<IpNet>,
    /// What MASQUERADE would take for packets leaving it; none means the node's InternalIP.
    pub source_v4: Option<Ipv4Addr>,
    pub source_v6: Option<Ipv6Addr>,
    /// The programs belong on it.
    pub attach: bool,
    /// Its clients are pods, where pods are told by their interface.
    pub pods: bool,
}

/// What interfaces are told by besides their kind.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Patterns {
    /// Globs over names, a leading `!` excludes; where there are any, they alone say which interfaces the
    /// programs belong on.
    pub attach: Vec<String>,
    pub pods: Option<PodInterfaces>,
}

/// Which interfaces pods are behind.
///
/// KUBE: `-i` in kube-proxy's rules, where what comes by a bridge's port comes by the bridge.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PodInterfaces {
    /// The one of this name: a bridge and all its ports.
    Named(String),
    /// Those whose names begin so.
    Prefix(String),
}

impl PodInterfaces {
    fn hold(&self, name: &str) -> bool {
        match self {
            Self::Named(wanted) => wanted == name,
            Self::Prefix(prefix) => name.starts_with(prefix.as_str()),
        }
    }
}

/// A link as rtnetlink describes it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Link {
    index: u32,
    name: String,
    /// The kind of a virtual link as `ip link` spells it; empty for hardware.
    kind: String,
    /// Index of the bridge, bond or VRF that it belongs to.
    master: Option<u32>,
    loopback: bool,
    ethernet: bool,
}

/// An address as rtnetlink describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Address {
    link: u32,
    net: IpNet,
    /// Of global scope, and not a secondary, tentative or deprecated one.
    preferred: bool,
}

/// Everything about the interfaces, from what rtnetlink says.
fn describe(links: &[Link], addresses: &[Address], patterns: &Patterns) -> Vec<Interface> {
    let mut interfaces: Vec<_> = links
        .iter()
        .map(|link| {
            let kind = classify(link, links);
            // KUBE: a bridge's ports send with the bridge's address, and by its name, as its own device would.
            let bridge = links
                .iter()
                .filter(|_| kind == InterfaceKind::BridgePort)
                .find(|other| Some(other.index) == link.master);
            let routed = bridge.unwrap_or(link);
            let sender = routed.index;
            let mut sources = addresses
                .iter()
                .filter(|address| address.link == sender && address.preferred);
            let v4 = sources
                .clone()
                .find_map(|address| match address.net.addr() {
                    IpAddr::V4(address) => Some(address),
                    IpAddr::V6(_) => None,
                });
            let v6 = sources.find_map(|address| match address.net.addr() {
                IpAddr::V6(address) => Some(address),
                IpAddr::V4(_) => None,
            });
            Interface {
                index: link.index,
                name: link.name.clone(),
                kind,
                link_layer: link.ethernet,
                veth_port: kind == InterfaceKind::BridgePort && link.kind == "veth",
                addresses: addresses
                    .iter()
                    .filter(|address| address.link == link.index)
                    .map(|address| address.net)
                    .collect(),
                source_v4: v4,
                source_v6: v6,
                attach: belongs(&link.name, kind, &patterns.attach),
                pods: patterns
                    .pods
                    .as_ref()
                    .is_some_and(|pods| pods.hold(&routed.name)),
            }
        })
        .collect();
    interfaces.sort_by_key(|interface| interface.index);
    interfaces
}

fn classify(link: &Link, links: &[Link]) -> InterfaceKind {
    if link.loopback {
        return InterfaceKind::Loopback;
    }
    if link.kind == "bridge" {
        return InterfaceKind::Bridge;
    }
    let master = link
        .master
        .and_then(|master| links.iter().find(|link| link.index == master));
    match master.map(|master| master.kind.as_str()) {
        Some("bridge") => return InterfaceKind::BridgePort,
        // The bond or team is what packets come from and go to.
        Some("bond" | "team") => return InterfaceKind::Other,
        _ => {}
    }
    match link.kind.as_str() {
        "" | "bond" | "team" | "vlan" | "macvlan" | "ipvlan" | "virt_wifi" => InterfaceKind::Uplink,
        "veth" | "netkit" => InterfaceKind::PodSide,
        "vxlan" | "geneve" | "ipip" | "sit" | "ip6tnl" | "gre" | "gretap" | "ip6gre"
        | "ip6gretap" | "wireguard" | "tun" | "xfrm" | "vti" | "vti6" => InterfaceKind::Tunnel,
        _ => InterfaceKind::Other,
    }
}

fn belongs(name: &str, kind: InterfaceKind, patterns: &[String]) -> bool {
    use InterfaceKind::{Bridge, BridgePort, Loopback, PodSide, Tunnel, Uplink};
    match kind {
        Bridge => return false,
        // Whatever the patterns: what policy drops of the node's connections to itself is dropped there.
        Loopback => return true,
        _ => {}
    }
    if patterns.is_empty() {
        return matches!(kind, Uplink | PodSide | BridgePort | Tunnel);
    }
    let excluded = patterns
        .iter()
        .filter_map(|pattern| pattern.strip_prefix('!'))
        .any(|pattern| glob::matches(pattern, name));
    let mut wanted = patterns
        .iter()
        .filter(|pattern| !pattern.starts_with('!'))
        .peekable();
    let only_exclusions = wanted.peek().is_none();
    let included = if only_exclusions {
        matches!(kind, Uplink | PodSide | BridgePort | Tunnel)
    } else {
        wanted.any(|pattern| glob::matches(pattern, name))
    };
    included && !excluded
}
