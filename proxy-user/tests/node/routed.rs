// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node between a client and a backend that are each behind two routers, in one address family.

use std::net::IpAddr;

use lab::node::{routed_path::RoutedPath, topology::NODE_PARAMETERS};

use crate::{
    objects::{Service, endpoint, node_with},
    world::World,
};

pub(crate) const PORT: u16 = 8080;
pub(crate) const NODE_PORT: u16 = 30_080;
/// The node's uplinks.
pub(crate) const UPLINKS: [&str; 2] = ["clients", "backends"];

pub(crate) struct Routed {
    /// The node; no pods are attached.
    pub(crate) node: World,
    pub(crate) clients: RoutedPath,
    pub(crate) backends: RoutedPath,
    /// The node's address.
    pub(crate) node_ip: IpAddr,
    /// The address of the host behind the routers of `backends`.
    pub(crate) backend_ip: IpAddr,
    pub(crate) cluster_ip: IpAddr,
}

impl Routed {
    /// Builds the hosts, and writes the Node object in version 7.
    pub(crate) fn build(v6: bool) -> Self {
        let nets = match v6 {
            true => [
                ["fd00:c0::", "fd00:c0:1::", "2001:db8:113::"],
                ["fd00:c0:2::", "fd00:c0:3::", "fd00:40:0:2::"],
            ],
            false => [
                ["192.168.40.", "192.168.41.", "203.0.113."],
                ["192.168.42.", "192.168.43.", "10.40.2."],
            ],
        };
        let address = |text: String| text.parse().expect("an address");
        let ends = |net| [1, 2].map(|last| address(format!("{net}{last}")));
        let [to_client, to_backend] = nets.map(|path| path.map(ends));
        let node = World::bare(&NODE_PARAMETERS);
        let way =
            |interface, links| RoutedPath::build(node.node(), interface, links).expect("a way");
        let [clients, backends] = UPLINKS;
        let node_ip = to_client[0][0];
        node.write("node.yaml", node_with(&[node_ip], Some(7)));
        Self {
            clients: way(clients, to_client),
            backends: way(backends, to_backend),
            node_ip,
            backend_ip: to_backend[2][1],
            cluster_ip: address(if v6 { "fd00:30::1" } else { "172.30.0.1" }.to_owned()),
            node,
        }
    }

    /// A service over TCP and UDP with this endpoint on another node.
    pub(crate) fn web(&self, backend: IpAddr) -> Service {
        Service::new("web", &self.cluster_ip.to_string())
            .ports(&[
                ("tcp", "TCP", 80, Some(NODE_PORT)),
                ("udp", "UDP", 80, Some(NODE_PORT)),
            ])
            .endpoints(vec![endpoint(&backend.to_string())])
            .on("node-b")
    }
}
