// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A simulated node with what surrounds it: its pods, the clients outside, the pods and addresses of
//! other nodes. Each host is a network namespace. Built from a `Layout` by the conformance runner,
//! the demo and tests.
//!
//! `outside` is the segment that the node's uplink is on: a bridge with the router's address and every
//! outside client's. `remote` stands for all other nodes, one hop away on the same segment; its default
//! route leads through the node, so that answers to sources that were kept pass it.

use std::{
    collections::BTreeMap,
    fmt::Write,
    net::IpAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};

use crate::node::{
    layout::{Host, Layout, host, subnet},
    netns::NetNs,
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

/// Duplicate address detection would keep an IPv6 address from use for a second.
const fn nodad(ip: IpAddr) -> &'static str {
    if ip.is_ipv6() { " nodad" } else { "" }
}

/// The node's end of the veth that is its uplink.
pub const UPLINK: &str = "eth0";
/// The far end of the uplink, in the outside namespace: where packets that left the node are seen.
pub const UPLINK_PEER: &str = "to-node";
/// Numbers of the interfaces at one end of each pair. Where both ends have one number, in their own
/// namespaces, the kernel (6.18) takes up to a second to notice that the link is up.
const UPLINK_INDEX: usize = 50;
const FIRST_POD_INDEX: usize = 100;
const SEGMENT: &str = "segment";
const POD_BRIDGE: &str = "cni0";
/// Every routed pod's gateway, as CNI plugins of that kind have it.
const POINT_TO_POINT_GATEWAY: [&str; 2] = ["169.254.1.1", "fe80::ecee:eeff:feee:eeee"];
const POINT_TO_POINT_MAC: &str = "ee:ee:ee:ee:ee:ee";

const TO_SETTLE: Duration = Duration::from_secs(5);
/// How iproute2 shows a link that carries nothing yet.
const DOWN: [&str; 3] = [
    "state DOWN",
    "state LOWERLAYERDOWN",
    "bridge_slave state disabled",
];

/// The namespaces, up and wired. Dropping it removes everything.
pub struct Topology {
    pub layout: Layout,
    pub plumbing: Plumbing,
    pub node: NetNs,
    pub outside: NetNs,
    pub remote: NetNs,
    pub pods: Vec<NetNs>,
    /// Every address of the node that a packet may leave it with: its own and its gateways'.
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
        topology.wire_segment()?;
        match plumbing {
            Plumbing::Bridge => topology.wire_bridge()?,
            Plumbing::Routed => topology.wire_routed()?,
        }
        topology.settle()?;
        Ok(topology)
    }

    /// Waits until every link is up on both sides: what is sent before is lost, and so is the second
    /// until neighbours are asked for again.
    fn settle(&self) -> Result<()> {
        let deadline = Instant::now() + TO_SETTLE;
        let hosts = [&self.node, &self.outside, &self.remote];
        for host in hosts.into_iter().chain(&self.pods) {
            loop {
                let links = host.feed("ip", &["-details", "-oneline", "link"], "")?;
                let is_down = |link: &&str| DOWN.iter().any(|state| link.contains(state));
                let Some(link) = links.lines().find(is_down) else {
                    break;
                };
                ensure!(
                    Instant::now() < deadline,
                    "{} does not come up: {link}",
                    host.name()
                );
                thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }

    /// The namespace that owns an address.
    pub fn namespace_of(&self, ip: IpAddr) -> Option<&NetNs> {
        Some(match self.layout.owner(ip)? {
            Host::Node => &self.node,
            Host::Pod(pod) => self.pods.get(pod)?,
            Host::Remote => &self.remote,
            Host::Outside => &self.outside,
        })
    }

    /// The node's uplink, the router with the clients behind it, the other nodes.
    fn wire_segment(&self) -> Result<()> {
        let layout = &self.layout;
        let mut node = String::from("link set lo up\n");
        let mut outside = format!(
            "link set lo up\nlink add {SEGMENT} type bridge forward_delay 0\nlink set {SEGMENT} up\n"
        );
        let mut remote = String::from("link set lo up\n");
        let segment = self.outside.path();
        for (index, (script, peer)) in
            (UPLINK_INDEX..).zip([(&mut node, UPLINK_PEER), (&mut remote, "to-remote")])
        {
            writeln!(
                script,
                "link add {UPLINK} index {index} type veth peer name {peer} netns {segment}"
            )?;
            writeln!(script, "link set {UPLINK} up")?;
            writeln!(outside, "link set {peer} master {SEGMENT} up")?;
        }
        let mut gateways: Vec<IpAddr> = Vec::new();
        let mut first: BTreeMap<bool, [IpAddr; 3]> = BTreeMap::new();
        let mut subnets = BTreeMap::new();
        for ip in &layout.node {
            let net = subnet(*ip);
            writeln!(
                node,
                "addr add {ip}/{}{} dev {UPLINK}",
                net.prefix_len(),
                nodad(*ip)
            )?;
            if subnets.contains_key(&net) {
                continue;
            }
            let router = layout.spare(net, true, &gateways)?;
            gateways.push(router);
            let others = layout.spare(net, true, &gateways)?;
            gateways.push(others);
            subnets.insert(net, router);
            first.entry(ip.is_ipv4()).or_insert([*ip, router, others]);
            let length = net.prefix_len();
            writeln!(
                outside,
                "addr add {router}/{length}{} dev {SEGMENT}",
                nodad(router)
            )?;
            writeln!(
                remote,
                "addr add {others}/{length}{} dev {UPLINK}",
                nodad(others)
            )?;
        }
        for [node_ip, router, others] in first.values() {
            let same = |ip: &&IpAddr| ip.is_ipv4() == node_ip.is_ipv4();
            writeln!(node, "route add default via {router} dev {UPLINK}")?;
            writeln!(outside, "route add default via {node_ip} dev {SEGMENT}")?;
            writeln!(remote, "route add default via {node_ip} dev {UPLINK}")?;
            for ip in layout.remote.iter().filter(same) {
                writeln!(remote, "addr add {}{} dev {UPLINK}", host(*ip), nodad(*ip))?;
                writeln!(node, "route add {} via {others} dev {UPLINK}", host(*ip))?;
            }
            for ip in layout.outside.iter().filter(same) {
                writeln!(
                    outside,
                    "addr add {}{} dev {SEGMENT}",
                    host(*ip),
                    nodad(*ip)
                )?;
            }
            // What lies in a subnet of the node, yet is nobody's, must still pass the node.
            for ip in layout.unowned.iter().filter(same) {
                writeln!(node, "route add {} via {router} dev {UPLINK}", host(*ip))?;
                writeln!(
                    outside,
                    "route add {} via {node_ip} dev {SEGMENT}",
                    host(*ip)
                )?;
            }
        }
        self.node.ip(&node)?;
        self.remote.ip(&remote)?;
        self.outside.ip(&outside)
    }

    fn wire_bridge(&mut self) -> Result<()> {
        let mut node = format!(
            "link add {POD_BRIDGE} type bridge forward_delay 0\nlink set {POD_BRIDGE} up\n"
        );
        let mut gateways = BTreeMap::new();
        for ip in self.layout.pod_addresses() {
            let net = subnet(ip);
            if gateways.contains_key(&net) {
                continue;
            }
            let gateway = self.layout.spare(net, false, &[])?;
            gateways.insert(net, gateway);
            self.node_addresses.push(gateway);
            writeln!(
                node,
                "addr add {gateway}/{}{} dev {POD_BRIDGE}",
                net.prefix_len(),
                nodad(gateway)
            )?;
        }
        for (number, pod) in self.pods.iter().enumerate() {
            writeln!(
                node,
                "link add veth{number} index {} type veth peer name eth0 netns {}",
                FIRST_POD_INDEX + number,
                pod.path()
            )?;
            writeln!(node, "link set veth{number} master {POD_BRIDGE} up")?;
        }
        self.node.ip(&node)?;
        let elsewhere = || self.layout.remote.iter().chain(&self.layout.unowned);
        for (pod, addresses) in self.pods.iter().zip(&self.layout.pods) {
            let mut script = String::from("link set lo up\nlink set eth0 up\n");
            for ip in addresses {
                let net = subnet(*ip);
                let gateway = gateways[&net];
                writeln!(
                    script,
                    "addr add {ip}/{}{} dev eth0",
                    net.prefix_len(),
                    nodad(*ip)
                )?;
                writeln!(script, "route add default via {gateway} dev eth0")?;
                for other in elsewhere().filter(|other| net.contains(*other)) {
                    writeln!(script, "route add {} via {gateway} dev eth0", host(*other))?;
                }
            }
            pod.ip(&script)?;
        }
        Ok(())
    }

    fn wire_routed(&self) -> Result<()> {
        let mut node = String::new();
        for (number, (pod, addresses)) in self.pods.iter().zip(&self.layout.pods).enumerate() {
            writeln!(
                node,
                "link add veth{number} index {} address {POINT_TO_POINT_MAC} type veth peer name eth0 netns {}",
                FIRST_POD_INDEX + number,
                pod.path()
            )?;
            writeln!(node, "link set veth{number} up")?;
            for ip in addresses {
                writeln!(node, "route add {} dev veth{number}", host(*ip))?;
            }
        }
        self.node.ip(&node)?;
        for (pod, addresses) in self.pods.iter().zip(&self.layout.pods) {
            let mut script = String::from("link set lo up\nlink set eth0 up\n");
            for ip in addresses {
                let gateway = POINT_TO_POINT_GATEWAY[usize::from(ip.is_ipv6())];
                writeln!(script, "addr add {}{} dev eth0", host(*ip), nodad(*ip))?;
                writeln!(
                    script,
                    "neigh replace {gateway} lladdr {POINT_TO_POINT_MAC} dev eth0 nud permanent"
                )?;
                writeln!(script, "route add default via {gateway} dev eth0 onlink")?;
            }
            pod.ip(&script)?;
        }
        Ok(())
    }
}

/// Of every host but the node: no redirect may teach it a way around the node.
const HOST_PARAMETERS: [(&str, &str); 10] = [
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

/// Of the node: a router with strict reverse path filters, as distributions set them.
const NODE_PARAMETERS: [(&str, &str); 8] = [
    ("ipv4/ip_forward", "1"),
    ("ipv4/conf/all/rp_filter", "1"),
    ("ipv4/conf/default/rp_filter", "1"),
    ("ipv6/conf/all/disable_ipv6", "0"),
    ("ipv6/conf/default/disable_ipv6", "0"),
    ("ipv6/conf/all/forwarding", "1"),
    ("ipv6/conf/default/accept_dad", "0"),
    ("ipv6/conf/default/accept_ra", "0"),
];
