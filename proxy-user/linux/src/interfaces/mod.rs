// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The interfaces and addresses of this network namespace, by rtnetlink, and their changes. Decides
//! which interfaces get the kernel programs; `agent` passes these to `datapath`.

mod describe;
mod neighbours;
mod netlink;
mod pods;
mod seen;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use ipnet::IpNet;

use describe::describe;
pub use neighbours::{follow_neighbours, port_to};
pub use netlink::{Interfaces, InterfacesError, subscribe};
pub use pods::{Mac, Neighbours, PodLink, pod_links, why_not};

/// What an interface is on this node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum InterfaceKind {
    /// Leads out of the node.
    Uplink,
    /// The host's end of a pod's veth or netkit pair, if pods are routed and not bridged.
    PodSide,
    /// A port of a bridge.
    BridgePort,
    Tunnel,
    /// A bridge itself. The programs are never attached to it.
    Bridge,
    Loopback,
    #[default]
    Other,
}

/// One interface.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Interface {
    pub index: u32,
    pub name: String,
    pub kind: InterfaceKind,
    /// The interface's packets carry an Ethernet header.
    pub link_layer: bool,
    /// The interface is a veth and a port of a bridge.
    pub veth_port: bool,
    /// Index of the bridge whose port the interface is; None if it is no bridge's port.
    pub bridge: Option<u32>,
    /// The interface is a tun or tap device: a user-space program makes its incoming frames.
    pub made_by_program: bool,
    /// The interface is a veth and a port of an Open vSwitch: frames for the node have the address
    /// of the switch's own port.
    pub switch_port: bool,
    /// The interface is a bridge's port whose link-layer address is not the bridge's: frames for
    /// the node are addressed to the bridge.
    pub bridge_port: bool,
    /// The longest IP packet that the interface carries, in bytes.
    pub mtu: u32,
    /// The interface's Ethernet address; None if it has none.
    pub mac: Option<Mac>,
    /// The interface is a veth or netkit device whose other end is in another network namespace.
    pub peer_elsewhere: bool,
    /// The interface has a queueing discipline that may delay packets.
    pub queues: bool,
    /// The interface is a bridge that filters by VLANs.
    pub filters_vlans: bool,
    /// The interface is a bridge's port whose frames do not go to other isolated ports.
    pub isolated: bool,
    pub addresses: Vec<IpNet>,
    /// The addresses that netfilter's MASQUERADE would choose from for packets that leave by the
    /// interface, in the kernel's order. For a family without any, the node's InternalIP is used.
    pub sources: Vec<Source>,
    /// The kind of a virtual interface as `ip link` spells it; empty for hardware.
    pub driver: String,
    /// The name of a VLAN, macvlan or ipvlan device on top of the interface; None if there is none.
    pub carries: Option<String>,
    /// A VLAN interface on top of the interface has programs, and no bridge takes its frames first.
    pub vlans: bool,
    /// Whether the interface is selected for XDP.
    pub uplink: bool,
    /// Whether the tc programs are attached to the interface.
    pub attach: bool,
    /// The interface has an address, and yet is of no kind that gets the tc programs.
    pub unserved: bool,
    /// Whether pods are behind the interface, if the configuration identifies pods by interfaces.
    pub pods: bool,
}

impl Interface {
    /// True if the interface carries the packets of one pod only. Where a node is itself a
    /// container, its uplinks are veths as well, but they have a subnet.
    pub fn leads_to_one_pod(&self) -> bool {
        // A link between two hosts may have a subnet of four addresses.
        let holds_many =
            |net: &IpNet| !is_link_local(net.addr()) && net.max_prefix_len() - net.prefix_len() > 2;
        self.veth_port
            || self.kind == InterfaceKind::PodSide && !self.addresses.iter().any(holds_many)
    }
    /// True for a device to which an IPVS proxy (kube-proxy, kube-router) gives the cluster IPs of
    /// all services.
    pub fn is_of_ipvs(&self) -> bool {
        ["kube-ipvs0", "kube-dummy-if"].contains(&self.name.as_str())
    }
}

/// True for an address that every interface has, and that says nothing about who is behind it.
pub fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// The patterns of the configuration that select interfaces by name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Patterns {
    /// Patterns of names for tc programs; those with a leading `!` exclude. If there are patterns
    /// without `!`, they alone decide. Loopback always gets the programs, a bridge never.
    pub attach: Vec<String>,
    /// Such patterns for XDP; without patterns, or with exclusions only, the uplinks are selected.
    pub xdp: Vec<String>,
    pub pods: Option<PodInterfaces>,
}

/// The interfaces that have pods behind them, as the configuration says.
///
/// KUBE: as with `-i` in kube-proxy's rules, packets from a bridge's port count as packets from the
/// bridge.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PodInterfaces {
    /// The interface of this name; if it is a bridge, all its ports as well.
    Named(String),
    /// Interfaces whose names begin with this text.
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

/// An interface as rtnetlink describes it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Link {
    index: u32,
    name: String,
    /// The kind of a virtual interface as `ip link` spells it; empty for hardware.
    kind: String,
    /// Index of the bridge, bond or VRF to which the interface belongs; None if it belongs to none.
    master: Option<u32>,
    /// Index of the device below the interface, if the interface is a VLAN or the like.
    lower: Option<u32>,
    loopback: bool,
    ethernet: bool,
    /// The interface is an IP over InfiniBand: a header of its own precedes each packet, which the
    /// programs do not read.
    infiniband: bool,
    /// The interface's link-layer address; empty if it has none.
    mac: Vec<u8>,
    mtu: u32,
    qdisc: String,
    peer_elsewhere: bool,
    filters_vlans: bool,
    /// The interface is a bridge's port whose frames do not go to other isolated ports.
    isolated: bool,
}

/// A source address for packets that leave by an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Source {
    pub address: IpAddr,
    /// The destinations for which this address is preferred. On an IPv4 point-to-point link: the
    /// other end's address.
    pub subnet: IpNet,
}

/// An address of an interface as rtnetlink describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Address {
    link: u32,
    net: IpNet,
    /// See [`Source::subnet`].
    subnet: IpNet,
    /// MASQUERADE may choose the address: it has global scope and is not secondary (IPv4), or
    /// temporary, tentative or deprecated (IPv6).
    preferred: bool,
    /// The kernel has found that another host has the address (IPv6), so it does not use it.
    duplicate: bool,
}
