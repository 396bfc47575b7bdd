// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node between a client and a backend that are each behind a router, in one address family.

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
/// The interface of a router or a host towards the node.
const TO_NODE: &str = "eth0";

pub(crate) struct Routed {
    /// The node; no pods are attached.
    pub(crate) node: World,
    /// Behind each uplink a router, and the host behind that.
    hops: [[NetNs; 2]; 2],
    /// The node's address.
    pub(crate) node_ip: IpAddr,
    /// The address of the host behind the second uplink.
    pub(crate) backend_ip: IpAddr,
}

impl Routed {
    /// Builds the hosts, and writes the Node object in version 7.
    pub(crate) fn build(v6: bool) -> Self {
        let (nets, length) = match v6 {
            true => (
                [
                    ["fd00:c0::", "2001:db8:113::"],
                    ["fd00:c0:2::", "fd00:40:0:2::"],
                ],
                64,
            ),
            false => (
                [["192.168.40.", "203.0.113."], ["192.168.42.", "10.40.2."]],
                24,
            ),
        };
        let node = World::bare(&NODE_PARAMETERS);
        let hops = [0, 1].map(|side: usize| {
            let hops = ["router", "host"].map(|name| NetNs::new(name).expect("run as root"));
            let ([router, host], [near, beyond]) = (&hops, nets[side]);
            router.set(&NODE_PARAMETERS).expect("a router");
            host.set(&HOST_PARAMETERS).expect("a host");
            for (from, down, to, net) in [
                (node.node(), UPLINKS[side], router, near),
                (router, "eth1", host, beyond),
            ] {
                let ends = [(down, 1), (TO_NODE, 2)];
                let ends = ends.map(|(name, last)| format!("{name} {net}{last}/{length}"));
                wire(from, &ends[0], to, &ends[1]).expect("a link");
                let default = to.ip(&format!("route add default via {net}1\n"));
                default.expect("a route");
            }
            let uplink = UPLINKS[side];
            node.ip(&format!(
                "route add {beyond}0/{length} via {near}2 dev {uplink}"
            ));
            hops
        });
        let address = |text: String| text.parse::<IpAddr>().expect("an address");
        let node_ip = address(format!("{}1", nets[0][0]));
        node.write("node.yaml", node_object(&[node_ip], 7));
        Self {
            node,
            hops,
            node_ip,
            backend_ip: address(format!("{}2", nets[1][1])),
        }
    }

    /// The hosts at the ends: the client and the backend.
    pub(crate) fn hosts(&self) -> [&NetNs; 2] {
        self.hops.each_ref().map(|[_, host]| host)
    }

    /// Prepares the routers for XDP programs at the node's uplinks.
    pub(crate) fn prepare_for_xdp(&self) {
        for [router, _] in &self.hops {
            let prepared = router.enter(|| prepare_far_end(TO_NODE));
            prepared.expect("enter the router").expect("offloads");
        }
    }

    /// A service over TCP and UDP whose endpoint is the backend, on another node.
    pub(crate) fn web(&self) -> Service {
        let cluster_ip = match self.node_ip {
            IpAddr::V4(_) => "172.30.0.1",
            IpAddr::V6(_) => "fd00:30::1",
        };
        let node_port = Some(NODE_PORT);
        Service::new("web", cluster_ip)
            .ports(&[("tcp", "TCP", 80, node_port), ("udp", "UDP", 80, node_port)])
            .endpoints(vec![endpoint(&self.backend_ip.to_string())])
            .on("node-b")
    }
}
