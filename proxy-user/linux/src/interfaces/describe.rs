// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What each interface is, and which ones get the kernel programs, from rtnetlink's links and
//! addresses. Pure; called by `seen`.

use std::collections::HashMap;

use ipnet::IpNet;
use proxy_common::masquerade::SOURCES;

use super::{Address, Interface, InterfaceKind, Link, Mac, Patterns, Source, is_link_local};
use crate::glob;

/// Kinds of interfaces beyond which nobody is: their addresses are the node's own.
const LOCAL: [&str; 4] = ["dummy", "vrf", "ifb", "nlmon"];

/// Returns all interfaces, described from rtnetlink's links and addresses.
pub(super) fn describe(
    links: &[Link],
    addresses: &[Address],
    patterns: &Patterns,
) -> Vec<Interface> {
    let node = Node::new(links, addresses);
    let mut interfaces: Vec<_> = links
        .iter()
        .map(|link| {
            let kind = node.classify(link);
            // KUBE: packets from a bridge's ports are masqueraded with the bridge's address and
            // matched by its name.
            let master = node.master_of(link);
            let bridge = master.filter(|_| kind == InterfaceKind::BridgePort);
            let is_switched = master.is_some_and(|master| master.kind == "openvswitch");
            let attach = belongs(&link.name, kind, &patterns.attach);
            let routed = bridge.unwrap_or(link);
            let sender = routed.index;
            Interface {
                index: link.index,
                name: link.name.clone(),
                kind,
                link_layer: link.ethernet,
                veth_port: kind == InterfaceKind::BridgePort && link.kind == "veth",
                bridge: bridge.map(|bridge| bridge.index),
                made_by_program: link.kind == "tun",
                switch_port: link.kind == "veth" && is_switched,
                bridge_port: bridge.is_some_and(|bridge| bridge.mac != link.mac),
                mtu: link.mtu,
                mac: Mac::try_from(link.mac.as_slice()).ok(),
                peer_elsewhere: link.peer_elsewhere && matches!(&*link.kind, "veth" | "netkit"),
                queues: !matches!(&*link.qdisc, "" | "noqueue"),
                filters_vlans: link.filters_vlans,
                isolated: link.isolated,
                addresses: node
                    .addresses_of(link.index)
                    .iter()
                    .filter(|address| !address.duplicate)
                    .map(|address| address.net)
                    .collect(),
                sources: sources_of(node.addresses_of(sender)),
                driver: link.kind.clone(),
                carries: node.lying_on(link).next().map(|upper| upper.name.clone()),
                vlans: bridge.is_none()
                    && node
                        .lying_on(link)
                        .filter(|upper| upper.kind == "vlan")
                        .any(|upper| belongs(&upper.name, node.classify(upper), &patterns.attach)),
                uplink: is_selected(&link.name, &patterns.xdp, kind == InterfaceKind::Uplink),
                attach,
                unserved: !attach
                    && kind == InterfaceKind::Other
                    && !LOCAL.contains(&link.kind.as_str())
                    && node.is_addressed(link)
                    && is_selected(&link.name, &patterns.attach, true),
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

/// Returns those of a link's addresses that MASQUERADE may choose for packets that leave by it.
/// Only the first address of a subnet is ever used. An IPv4 address that is its own subnet (/32)
/// contains no next hop, so it is used only if it is the first of all.
fn sources_of(addresses: &[&Address]) -> Vec<Source> {
    let mut sources: Vec<Source> = Vec::new();
    for v4 in [true, false] {
        let usable = addresses
            .iter()
            .filter(|address| address.preferred && address.net.addr().is_ipv4() == v4);
        let before = sources.len();
        for address in usable {
            let own = &sources[before..];
            let holds_itself = address.subnet == IpNet::from(address.net.addr());
            let is_known = own.iter().any(|known| known.subnet == address.subnet);
            if own.len() < SOURCES && !is_known && (own.is_empty() || !v4 || !holds_itself) {
                sources.push(Source {
                    address: address.net.addr(),
                    subnet: address.subnet,
                });
            }
        }
    }
    sources
}

/// The links and addresses of the node, by index: a node may have thousands.
struct Node<'a> {
    links: HashMap<u32, &'a Link>,
    /// The devices on top of a link that share it by VLAN tags or addresses. Key: the link's index.
    uppers: HashMap<u32, Vec<&'a Link>>,
    /// The addresses of a link, in the kernel's order. Key: the link's index.
    addresses: HashMap<u32, Vec<&'a Address>>,
}

impl<'a> Node<'a> {
    fn new(links: &'a [Link], addresses: &'a [Address]) -> Self {
        const SHARING: [&str; 5] = ["vlan", "macvlan", "macvtap", "ipvlan", "ipvtap"];
        let mut node = Self {
            links: links.iter().map(|link| (link.index, link)).collect(),
            uppers: HashMap::new(),
            addresses: HashMap::new(),
        };
        for link in links {
            // With its other end in another namespace, a device has the index of an interface
            // there.
            if let Some(lower) = link.lower
                && !link.peer_elsewhere
                && SHARING.contains(&link.kind.as_str())
            {
                node.uppers.entry(lower).or_default().push(link);
            }
        }
        for address in addresses {
            node.addresses
                .entry(address.link)
                .or_default()
                .push(address);
        }
        node
    }
    /// Returns the bridge, bond or the like to which a link belongs.
    fn master_of(&self, link: &Link) -> Option<&'a Link> {
        self.links.get(&link.master?).copied()
    }
    fn addresses_of(&self, link: u32) -> &[&'a Address] {
        self.addresses.get(&link).map_or(&[], Vec::as_slice)
    }
    /// Returns the devices on top of a link that share it by VLAN tags or addresses.
    fn lying_on(&self, link: &Link) -> impl Iterator<Item = &'a Link> {
        self.uppers.get(&link.index).into_iter().flatten().copied()
    }
    /// True if a link has an address that packets from elsewhere may be for.
    fn is_addressed(&self, link: &Link) -> bool {
        let mut addresses = self.addresses_of(link.index).iter();
        addresses.any(|address| !is_link_local(address.net.addr()))
    }
    fn classify(&self, link: &Link) -> InterfaceKind {
        if link.loopback {
            return InterfaceKind::Loopback;
        }
        if link.kind == "bridge" {
            return InterfaceKind::Bridge;
        }
        match self.master_of(link).map(|master| master.kind.as_str()) {
            Some("bridge") => return InterfaceKind::BridgePort,
            // Packets pass the bond or team device itself, or the device of the hypervisor (netvsc,
            // net_failover: these have no kind) that has a faster one below it.
            Some("bond" | "team" | "") => return InterfaceKind::Other,
            _ => {}
        }
        match link.kind.as_str() {
            _ if link.infiniband => InterfaceKind::Other,
            "" | "bond" | "team" | "vlan" | "macvlan" | "ipvlan" | "virt_wifi" => {
                InterfaceKind::Uplink
            }
            "veth" | "netkit" => InterfaceKind::PodSide,
            "vxlan" | "geneve" | "ipip" | "sit" | "ip6tnl" | "gre" | "gretap" | "ip6gre"
            | "ip6gretap" | "wireguard" | "tun" | "xfrm" | "vti" | "vti6" => InterfaceKind::Tunnel,
            kind if LOCAL.contains(&kind) => InterfaceKind::Other,
            // Of whatever kind (dsa, ppp, wwan, hsr, macsec and those to come): what is addressed
            // to the node comes in there. A macvtap without an address is a virtual machine's.
            _ if self.is_addressed(link) => InterfaceKind::Uplink,
            _ => InterfaceKind::Other,
        }
    }
}

fn belongs(name: &str, kind: InterfaceKind, patterns: &[String]) -> bool {
    use InterfaceKind::{Bridge, BridgePort, Loopback, PodSide, Tunnel, Uplink};
    match kind {
        Bridge => return false,
        // Always: on the loopback interface, the program drops connections of the node to itself
        // that a traffic policy forbids.
        Loopback => return true,
        _ => {}
    }
    let detected = matches!(kind, Uplink | PodSide | BridgePort | Tunnel);
    is_selected(name, patterns, detected)
}

/// True if the patterns select a name. Without patterns, or with exclusions (`!`) only, `detected`
/// is the answer for names that are not excluded.
fn is_selected(name: &str, patterns: &[String], detected: bool) -> bool {
    let all = patterns.iter().map(String::as_str);
    let (exclusions, wanted): (Vec<_>, Vec<_>) = all.partition(|one| one.starts_with('!'));
    let selects = |one: &&str| glob::matches(one.strip_prefix('!').unwrap_or(one), name);
    let included = if wanted.is_empty() {
        detected
    } else {
        wanted.iter().any(selects)
    };
    included && !exclusions.iter().any(selects)
}
