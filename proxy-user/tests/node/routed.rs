// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node between a client and a backend that are each behind a router.

use std::net::Ipv4Addr;

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
/// The node port of the service.
pub(crate) const SERVICE: &str = "192.168.40.1:30080";
pub(crate) const BACKEND_IP: Ipv4Addr = Ipv4Addr::new(10, 40, 2, 2);
/// The node's uplinks.
pub(crate) const UPLINKS: [&str; 2] = ["clients", "backends"];
/// The networks behind each uplink: of the router, and of the host behind that.
const NETS: [[&str; 2]; 2] = [["192.168.40", "203.0.113"], ["192.168.42", "10.40.2"]];
/// The interface of a router or a host towards the node.
const TO_NODE: &str = "eth0";

pub(crate) struct Routed {
    /// The node; no pods are attached.
    pub(crate) node: World,
    /// Behind each uplink a router, and the host behind that.
    hops: [[NetNs; 2]; 2],
}

impl Routed {
    /// Builds the hosts, and writes the Node object in version 7 and a service over TCP and UDP,
    /// whose endpoint is the backend.
    pub(crate) fn build() -> Self {
        let node = World::bare(&NODE_PARAMETERS);
        let hops = [0, 1].map(|side: usize| {
            let hops = ["router", "host"].map(|name| NetNs::new(name).expect("run as root"));
            let ([router, host], [near, beyond]) = (&hops, NETS[side]);
            router.set(&NODE_PARAMETERS).expect("a router");
            host.set(&HOST_PARAMETERS).expect("a host");
            for (from, down, to, net) in [
                (node.node(), UPLINKS[side], router, near),
                (router, "eth1", host, beyond),
            ] {
                let ends = [(down, 1), (TO_NODE, 2)];
                let ends = ends.map(|(name, last)| format!("{name} {net}.{last}/24"));
                wire(from, &ends[0], to, &ends[1]).expect("a link");
                let default = to.ip(&format!("route add default via {net}.1\n"));
                default.expect("a route");
            }
            node.ip(&format!("route add {beyond}.0/24 via {near}.2"));
            hops
        });
        node.write("node.yaml", node_object(&["192.168.40.1"], 7));
        let node_port = Some(30_080);
        let web = Service::new("web", "172.30.0.1")
            .ports(&[("tcp", "TCP", 80, node_port), ("udp", "UDP", 80, node_port)])
            .endpoints(vec![endpoint(&BACKEND_IP.to_string())]);
        node.publish(web.on("node-b"));
        Self { node, hops }
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
}
