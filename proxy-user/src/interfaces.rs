// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The interfaces and addresses of this network namespace, by rtnetlink, followed as they come and go.
//! Says which interfaces the programs are attached to; `agent` hands them to `datapath`.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

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
    pub addresses: Vec<IpNet>,
    /// What MASQUERADE would take for packets leaving it; none means the node's InternalIP.
    pub source_v4: Option<Ipv4Addr>,
    pub source_v6: Option<Ipv6Addr>,
    /// The programs belong on it.
    pub attach: bool,
}

/// Follows the interfaces of the network namespace it was opened in. Needs a tokio runtime.
pub struct Interfaces {}

impl Interfaces {
    /// Reads all interfaces. `patterns` (globs over names, `!` excludes) replace detection where not empty.
    pub async fn open(_patterns: &[String]) -> Result<Self, InterfacesError> {
        unimplemented!()
    }
    /// All interfaces as last read.
    pub fn current(&self) -> &[Interface] {
        unimplemented!()
    }
    /// Waits until something differs from [`Self::current`] and returns all interfaces anew.
    pub async fn changed(&mut self) -> Result<&[Interface], InterfacesError> {
        unimplemented!()
    }
}

/// rtnetlink failed.
#[derive(Debug, thiserror::Error)]
#[error("{attempt} by rtnetlink")]
pub struct InterfacesError {
    attempt: &'static str,
    source: std::io::Error,
}
