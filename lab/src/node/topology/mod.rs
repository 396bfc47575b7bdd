// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A simulated node, its pods, the clients outside, and the pods and addresses of other nodes. The
//! node and each of its pods is a network namespace. All clients outside share one namespace, all
//! other nodes another. Built from a `Layout` by the conformance runner, the demo, benchmarks and
//! tests.
//!
//! The namespace `outside` holds the network segment of the node's uplink: a bridge with the
//! addresses of the router and of every outside client. `remote` stands for all other nodes, one
//! hop away on the same segment. Its default route leads through the node, so that answers to a
//! client that was not masqueraded pass the node.

mod wiring;

use std::{
    net::IpAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};

use super::{
    layout::{Host, Layout},
    netns::NetNs,
    offload::prepare_far_end,
};

/// How pods are joined to the node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Plumbing {
    /// Pods are ports of one bridge, which holds the gateway's address.
    Bridge,
    /// One veth per pod, an on-link gateway, a host route per pod; the node's side has no address.
    Routed,
}

impl Plumbing {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bridge => "bridge",
            Self::Routed => "routed",
        }
    }
}

/// The node's end of the veth that is its uplink.
pub const UPLINK: &str = "eth0";
/// The far end of the uplink, in the outside namespace: there packets from the node are captured.
pub const UPLINK_PEER: &str = "to-node";

const TO_SETTLE: Duration = Duration::from_secs(5);
/// Texts that iproute2 prints for a link that is not up yet.
const DOWN: [&str; 3] = [
    "state DOWN",
    "state LOWERLAYERDOWN",
    "bridge_slave state disabled",
];

/// The network namespaces of all hosts, up and connected. Dropping it removes them.
pub struct Topology {
    pub layout: Layout,
    pub plumbing: Plumbing,
    pub node: NetNs,
    pub outside: NetNs,
    pub remote: NetNs,
    pub pods: Vec<NetNs>,
    /// Every address that the node may use as a source: its own addresses and the pods' gateways.
    pub node_addresses: Vec<IpAddr>,
}

impl Topology {
    pub fn build(layout: Layout, plumbing: Plumbing) -> Result<Self> {
        let mut topology = Self {
            node: NetNs::new("node")?,
            outside: NetNs::new("outside")?,
            remote: NetNs::new("remote")?,
            pods: (0..layout.pods.len())
                .map(|pod| NetNs::new(&format!("pod {}", layout.pods[pod][0])))
                .collect::<Result<_>>()?,
            node_addresses: layout.node.clone(),
            plumbing,
            layout,
        };
        let hosts = [&topology.outside, &topology.remote];
        for host in hosts.into_iter().chain(&topology.pods) {
            host.set(&HOST_PARAMETERS)?;
        }
        topology.node.set(&NODE_PARAMETERS)?;
        topology.node.suit_conntrack()?;
        topology.wire_segment()?;
        if plumbing == Plumbing::Bridge {
            topology.wire_bridge()?;
        }
        topology.wire_pods()?;
        topology.settle()?;
        Ok(topology)
    }

    /// Prepares the uplink's far end for an XDP program at the node's end of the uplink.
    pub fn prepare_for_xdp(&self) -> Result<()> {
        self.outside.enter(|| prepare_far_end(UPLINK_PEER))?
    }

    /// Waits until every link is up on both sides. A packet that is sent earlier is lost, and its
    /// sender repeats the ARP or neighbour request only after a second.
    fn settle(&self) -> Result<()> {
        let deadline = Instant::now() + TO_SETTLE;
        let hosts = [&self.node, &self.outside, &self.remote];
        for host in hosts.into_iter().chain(&self.pods) {
            loop {
                let links = host.feed("ip", &["-details", "-oneline", "link"], "")?;
                // Once the tunnel modules are loaded, every namespace has the kernel's own tunnel
                // devices; these stay down.
                let is_ours = |link: &&str| !link.contains("@NONE: ");
                let is_down = |link: &&str| DOWN.iter().any(|state| link.contains(state));
                let Some(link) = links.lines().filter(is_ours).find(is_down) else {
                    break;
                };
                let name = host.name();
                ensure!(Instant::now() < deadline, "{name} does not come up: {link}");
                thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }

    /// Returns the network namespace of the host that owns an address; None if none owns it.
    pub fn namespace_of(&self, ip: IpAddr) -> Option<&NetNs> {
        Some(match self.layout.owner(ip)? {
            Host::Node => &self.node,
            Host::Pod(pod) => self.pods.get(pod)?,
            Host::Remote => &self.remote,
            Host::Outside => &self.outside,
        })
    }
}

/// Kernel parameters of every host except the node. These hosts ignore ICMP redirects, which would
/// send packets around the node.
pub const HOST_PARAMETERS: [(&str, &str); 10] = [
    ("ipv4/conf/all/rp_filter", "0"),
    ("ipv4/conf/default/rp_filter", "0"),
    ("ipv4/conf/all/accept_redirects", "0"),
    ("ipv4/conf/default/accept_redirects", "0"),
    ("ipv4/ip_forward", "0"),
    ("ipv6/conf/all/disable_ipv6", "0"),
    ("ipv6/conf/default/disable_ipv6", "0"),
    ("ipv6/conf/default/accept_dad", "0"),
    ("ipv6/conf/default/accept_ra", "0"),
    ("ipv6/conf/default/accept_redirects", "0"),
];

/// Kernel parameters of the node: a router with strict reverse path filters, as is usual.
pub const NODE_PARAMETERS: [(&str, &str); 8] = [
    ("ipv4/ip_forward", "1"),
    ("ipv4/conf/all/rp_filter", "1"),
    ("ipv4/conf/default/rp_filter", "1"),
    ("ipv6/conf/all/disable_ipv6", "0"),
    ("ipv6/conf/default/disable_ipv6", "0"),
    ("ipv6/conf/all/forwarding", "1"),
    ("ipv6/conf/default/accept_dad", "0"),
    ("ipv6/conf/default/accept_ra", "0"),
];
