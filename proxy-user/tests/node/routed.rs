// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node between a client and a backend that are each behind two routers, in one address family.
//! The MTU of any link can be reduced.

use std::net::IpAddr;

use lab::node::{
    netns::NetNs,
    offload::prepare_far_end,
    pod::wire,
    topology::{HOST_PARAMETERS, NODE_PARAMETERS},
};

use crate::{
    objects::{Service, endpoint, node_object},
    world::World,
};

pub(crate) const PORT: u16 = 8080;
pub(crate) const NODE_PORT: u16 = 30_080;
/// The node's uplinks.
pub(crate) const UPLINKS: [&str; 2] = ["clients", "backends"];
/// The interfaces of routers and hosts towards the node, and of routers away from it.
const TO_NODE: &str = "eth0";
const TO_HOST: &str = "eth1";

pub(crate) struct Routed {
    /// The node; no pods are attached.
    pub(crate) node: World,
    /// Behind each uplink two routers and a host, the nearest to the node first.
    hops: [[NetNs; 3]; 2],
    /// The node's address.
    pub(crate) node_ip: IpAddr,
    /// The address of the host behind the second uplink.
    pub(crate) backend_ip: IpAddr,
    pub(crate) cluster_ip: IpAddr,
}

impl Routed {
    /// Builds the hosts, and writes the Node object in version 7.
    pub(crate) fn build(v6: bool) -> Self {
        let (nets, cluster_ip) = match v6 {
            true => (
                [
                    ["fd00:c0::", "fd00:c0:1::", "2001:db8:113::"],
                    ["fd00:c0:2::", "fd00:c0:3::", "fd00:40:0:2::"],
                ],
                "fd00:30::1",
            ),
            false => (
                [
                    ["192.168.40.", "192.168.41.", "203.0.113."],
                    ["192.168.42.", "192.168.43.", "10.40.2."],
                ],
                "172.30.0.1",
            ),
        };
        let node = World::bare(&NODE_PARAMETERS);
        let length = if v6 { 64 } else { 24 };
        let hops = [0, 1].map(|side: usize| {
            let hops = ["near", "far", "host"].map(|name| NetNs::new(name).expect("run as root"));
            let [near, far, host] = &hops;
            for router in [near, far] {
                router.set(&NODE_PARAMETERS).expect("a router");
            }
            host.set(&HOST_PARAMETERS).expect("a host");
            let beyond = format!("{}0/{length}", nets[side][2]);
            for (link, net) in nets[side].iter().enumerate() {
                let (from, down) = end(&node, &hops, side, link);
                let (this, next) = (format!("{net}1"), format!("{net}2"));
                let ends = [(down, &this), (TO_NODE, &next)];
                let ends = ends.map(|(name, address)| format!("{name} {address}/{length}"));
                wire(from, &ends[0], &hops[link], &ends[1]).expect("a link");
                let default = hops[link].ip(&format!("route add default via {this}\n"));
                default.expect("a route");
                if link < 2 {
                    let there = from.ip(&format!("route add {beyond} via {next} dev {down}\n"));
                    there.expect("a route");
                }
            }
            hops
        });
        let address = |text: String| text.parse::<IpAddr>().expect("an address");
        let node_ip = address(format!("{}1", nets[0][0]));
        node.write("node.yaml", node_object(&[node_ip], 7));
        Self {
            node,
            hops,
            node_ip,
            backend_ip: address(format!("{}2", nets[1][2])),
            cluster_ip: address(cluster_ip.to_owned()),
        }
    }

    /// The hosts at the ends: the client and the backend.
    pub(crate) fn hosts(&self) -> [&NetNs; 2] {
        self.hops.each_ref().map(|[_, _, host]| host)
    }

    /// Prepares the nearest routers for XDP programs at the node's uplinks.
    pub(crate) fn prepare_for_xdp(&self) {
        for [near, ..] in &self.hops {
            let prepared = near.enter(|| prepare_far_end(TO_NODE));
            prepared.expect("enter the router").expect("offloads");
        }
    }

    /// Sets the MTU at both ends of a link, in bytes; link 0 of each side is the one at the node.
    pub(crate) fn set_mtu(&self, side: usize, link: usize, mtu: u32) {
        let (from, down) = end(&self.node, &self.hops[side], side, link);
        for (host, name) in [(from, down), (&self.hops[side][link], TO_NODE)] {
            let set = host.ip(&format!("link set {name} mtu {mtu}\n"));
            set.expect("a link");
        }
    }

    /// A service over TCP and UDP with this endpoint on another node. The first of the node, with
    /// number 0, has `cluster_ip` and `NODE_PORT`; each other one the addresses that come next.
    pub(crate) fn web(&self, number: u16, backend: IpAddr) -> Service {
        let cluster_ip = match self.cluster_ip {
            IpAddr::V4(first) => IpAddr::from((first.to_bits() + u32::from(number)).to_be_bytes()),
            IpAddr::V6(first) => IpAddr::from((first.to_bits() + u128::from(number)).to_be_bytes()),
        };
        let node_port = Some(NODE_PORT + number);
        Service::new(&format!("web{number}"), &cluster_ip.to_string())
            .ports(&[("tcp", "TCP", 80, node_port), ("udp", "UDP", 80, node_port)])
            .endpoints(vec![endpoint(&backend.to_string())])
            .on("node-b")
    }
}

/// Returns the end of a link that is nearer to the node: its namespace and the interface's name.
fn end<'a>(
    node: &'a World,
    hops: &'a [NetNs; 3],
    side: usize,
    link: usize,
) -> (&'a NetNs, &'a str) {
    match link.checked_sub(1) {
        None => (node.node(), UPLINKS[side]),
        Some(hop) => (&hops[hop], TO_HOST),
    }
}
