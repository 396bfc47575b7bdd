// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The node that is attacked: six client pods, two server pods, a client outside, and two services.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

use anyhow::Result;
use serde_json::json;

use super::servers::{self, Servers};
use crate::{
    load::{
        manifests::{self, Port, endpoint},
        setup::CLIENT_PARAMETERS,
    },
    node::{
        bpffs,
        cgroup::Cgroup,
        layout::Layout,
        netns::NetNs,
        topology::{Plumbing, Topology},
    },
};

/// Number of client pods.
pub const CLIENTS: usize = 6;
pub(super) const NODE: Ipv4Addr = Ipv4Addr::new(192, 168, 40, 2);
pub(super) const SERVERS: [Ipv4Addr; 2] =
    [Ipv4Addr::new(10, 40, 1, 20), Ipv4Addr::new(10, 40, 1, 21)];
/// The cluster IPs of the service with one endpoint and of the service with two.
const ONE: Ipv4Addr = Ipv4Addr::new(172, 30, 250, 1);
const TWO: Ipv4Addr = Ipv4Addr::new(172, 30, 250, 2);

/// The service port that a client calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// A node port of the service with one endpoint. The client closes each connection first.
    NodePort,
    /// Another node port of that service, to another port of the endpoint. The server closes each
    /// connection first.
    NodePortServerCloses,
    /// The cluster IP of the service with one endpoint.
    ClusterIp,
    /// The UDP port of the service with one endpoint, by node port; `ClusterIpUdp`: by cluster IP.
    NodePortUdp,
    ClusterIpUdp,
    /// The cluster IP of the service with two endpoints.
    Two,
}

impl Call {
    /// Returns the service's address and port.
    pub(super) const fn service(self) -> SocketAddrV4 {
        match self {
            Self::NodePort => SocketAddrV4::new(NODE, 30_080),
            Self::NodePortServerCloses => SocketAddrV4::new(NODE, 30_081),
            Self::NodePortUdp => SocketAddrV4::new(NODE, 30_053),
            Self::ClusterIp => SocketAddrV4::new(ONE, 80),
            Self::ClusterIpUdp => SocketAddrV4::new(ONE, 53),
            Self::Two => SocketAddrV4::new(TWO, 80),
        }
    }

    /// Returns the address and port of the service's endpoint; of the first one if there are two.
    pub(super) const fn pod(self) -> SocketAddrV4 {
        let port = match self {
            Self::NodePort | Self::ClusterIp => servers::CLIENT_CLOSES,
            Self::NodePortServerCloses => servers::SERVER_CLOSES,
            Self::NodePortUdp | Self::ClusterIpUdp => servers::QUERIES,
            Self::Two => servers::OF_TWO,
        };
        SocketAddrV4::new(SERVERS[0], port)
    }
}

/// The attacked node with its pods, connected; the servers in the pods answer.
pub struct World {
    topology: Topology,
    /// A cgroup without processes: the socket hooks attached to it see no client, so every client
    /// is served on the packet path.
    cgroup: Cgroup,
    _servers: [Servers; 2],
}

impl World {
    pub fn new(plumbing: Plumbing) -> Result<Self> {
        bpffs::prepare()?;
        servers::raise_file_limit()?;
        let client = |last: usize| vec![IpAddr::from([10, 40, 1, 10 + last as u8])];
        let layout = Layout {
            node: vec![NODE.into()],
            pods: (0..CLIENTS)
                .map(client)
                .chain(SERVERS.map(|server| vec![server.into()]))
                .collect(),
            outside: [Ipv4Addr::new(203, 0, 113, 7).into()].into(),
            ..Layout::default()
        };
        let topology = Topology::build(layout, plumbing)?;
        for client in topology.pods[..CLIENTS].iter().chain([&topology.outside]) {
            client.set(&CLIENT_PARAMETERS)?;
        }
        let servers = [
            Servers::start(&topology.pods[CLIENTS])?,
            Servers::start(&topology.pods[CLIENTS + 1])?,
        ];
        Ok(Self {
            topology,
            cgroup: Cgroup::new()?,
            _servers: servers,
        })
    }

    pub(super) fn node(&self) -> &NetNs {
        &self.topology.node
    }
    pub(super) fn outside(&self) -> &NetNs {
        &self.topology.outside
    }
    pub(super) fn clients(&self) -> &[NetNs] {
        &self.topology.pods[..CLIENTS]
    }
    /// Returns the address of a client pod, by its number from 0.
    pub(super) fn address_of(client: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 40, 1, 10 + client as u8)
    }
    pub(super) fn second_server(&self) -> &NetNs {
        &self.topology.pods[CLIENTS + 1]
    }
    pub(super) fn cgroup(&self) -> &Cgroup {
        &self.cgroup
    }
}

/// Returns manifests of the node, the two services and their EndpointSlices.
pub(super) fn manifests(version: u64) -> String {
    let port = |name, port, target, node_port| Port {
        name,
        protocol: if target == servers::QUERIES {
            "UDP"
        } else {
            "TCP"
        },
        port,
        target,
        node_port,
    };
    let of_one = [
        port("c", 80, servers::CLIENT_CLOSES, Some(30_080)),
        port("s", 81, servers::SERVER_CLOSES, Some(30_081)),
        port("q", 53, servers::QUERIES, Some(30_053)),
    ];
    let of_two = [port("t", 80, servers::OF_TWO, None)];
    let endpoints = SERVERS.map(|pod| endpoint(pod, "node-a"));
    let spec = |kind: &str, ip: Ipv4Addr| json!({"type": kind, "clusterIP": ip});
    manifests::text(&[
        manifests::node(NODE, version),
        manifests::service("one", &of_one, spec("NodePort", ONE)),
        manifests::slice("one", &of_one, endpoints[..1].to_vec()),
        manifests::service("two", &of_two, spec("ClusterIP", TWO)),
        manifests::slice("two", &of_two, endpoints),
    ])
}
