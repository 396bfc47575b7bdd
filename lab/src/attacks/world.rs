// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The node that is attacked: six client pods, a server pod, a client outside, and a service.

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
const NODE: Ipv4Addr = Ipv4Addr::new(192, 168, 40, 2);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 40, 1, 20);
const CLUSTER_IP: Ipv4Addr = Ipv4Addr::new(172, 30, 250, 1);

/// The service port that a client calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Call {
    /// A node port. The client closes each connection first.
    NodePort,
    /// Another node port, to another port of the endpoint. The server closes each connection first.
    NodePortServerCloses,
    ClusterIp,
    /// The UDP port, by node port; `ClusterIpUdp`: by cluster IP.
    NodePortUdp,
    ClusterIpUdp,
}

impl Call {
    /// Returns the service's address and port.
    pub(super) const fn service(self) -> SocketAddrV4 {
        match self {
            Self::NodePort => SocketAddrV4::new(NODE, 30_080),
            Self::NodePortServerCloses => SocketAddrV4::new(NODE, 30_081),
            Self::NodePortUdp => SocketAddrV4::new(NODE, 30_053),
            Self::ClusterIp => SocketAddrV4::new(CLUSTER_IP, 80),
            Self::ClusterIpUdp => SocketAddrV4::new(CLUSTER_IP, 53),
        }
    }

    /// Returns the address and port of the service's endpoint.
    pub(super) const fn pod(self) -> SocketAddrV4 {
        let port = match self {
            Self::NodePort | Self::ClusterIp => servers::CLIENT_CLOSES,
            Self::NodePortServerCloses => servers::SERVER_CLOSES,
            Self::NodePortUdp | Self::ClusterIpUdp => servers::QUERIES,
        };
        SocketAddrV4::new(SERVER, port)
    }
}

/// The attacked node with its pods, connected; the servers in the pods answer.
pub struct World {
    topology: Topology,
    /// A cgroup without processes: the socket hooks attached to it see no client, so every client
    /// is served on the packet path.
    cgroup: Cgroup,
    _servers: Servers,
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
                .chain([vec![SERVER.into()]])
                .collect(),
            outside: [Ipv4Addr::new(203, 0, 113, 7).into()].into(),
            ..Layout::default()
        };
        let topology = Topology::build(layout, plumbing)?;
        for client in topology.pods[..CLIENTS].iter().chain([&topology.outside]) {
            client.set(&CLIENT_PARAMETERS)?;
        }
        let servers = Servers::start(&topology.pods[CLIENTS])?;
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
    pub(super) fn cgroup(&self) -> &Cgroup {
        &self.cgroup
    }
}

/// Returns manifests of the node, the service and its EndpointSlice.
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
        node_port: Some(node_port),
    };
    let ports = [
        port("c", 80, servers::CLIENT_CLOSES, 30_080),
        port("s", 81, servers::SERVER_CLOSES, 30_081),
        port("q", 53, servers::QUERIES, 30_053),
    ];
    let spec = json!({"type": "NodePort", "clusterIP": CLUSTER_IP});
    manifests::text(&[
        manifests::node(NODE, version),
        manifests::service("one", &ports, spec),
        manifests::slice("one", &ports, [endpoint(SERVER, "node-a")]),
    ])
}
