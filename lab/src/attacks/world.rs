// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The node that is attacked: six client pods, two server pods, a client outside, and two services.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

use anyhow::Result;

use super::servers::{self, Servers};
use crate::{
    load::setup::CLIENT_PARAMETERS,
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
    /// A port of the service with one endpoint where no server listens: for connections without
    /// sockets.
    OpenConnections,
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
            Self::OpenConnections => SocketAddrV4::new(ONE, 82),
        }
    }

    /// Returns the address and port of the service's endpoint; of the first one if there are two.
    pub(super) const fn pod(self) -> SocketAddrV4 {
        let port = match self {
            Self::NodePort | Self::ClusterIp => servers::CLIENT_CLOSES,
            Self::NodePortServerCloses => servers::SERVER_CLOSES,
            Self::NodePortUdp | Self::ClusterIpUdp => servers::QUERIES,
            Self::Two => servers::OF_TWO,
            Self::OpenConnections => servers::NOBODY,
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
    /// Returns the network namespace of the first of the two server pods.
    pub(super) fn first_server(&self) -> &NetNs {
        &self.topology.pods[CLIENTS]
    }
    pub(super) fn second_server(&self) -> &NetNs {
        &self.topology.pods[CLIENTS + 1]
    }
    pub(super) fn cgroup(&self) -> &Cgroup {
        &self.cgroup
    }
}

/// Returns manifests of the two services and their EndpointSlices, as YAML documents.
pub(super) fn manifests() -> String {
    let [first, second] = SERVERS;
    let slice = |name: &str, ports: &str, endpoints: &[Ipv4Addr]| {
        let endpoints: Vec<_> = endpoints
            .iter()
            .map(|pod| {
                format!("{{addresses: [{pod}], nodeName: node-a, conditions: {{ready: true}}}}")
            })
            .collect();
        format!(
            "---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {name}-a, namespace: default, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: IPv4
ports: [{ports}]
endpoints: [{}]
",
            endpoints.join(", ")
        )
    };
    let (c, s, q, t, h) = (
        servers::CLIENT_CLOSES,
        servers::SERVER_CLOSES,
        servers::QUERIES,
        servers::OF_TWO,
        servers::NOBODY,
    );
    let of_one = slice(
        "one",
        &format!(
            "{{name: c, port: {c}, protocol: TCP}}, {{name: s, port: {s}, protocol: TCP}}, {{name: q, port: {q}, protocol: UDP}}, {{name: h, port: {h}, protocol: TCP}}"
        ),
        &[first],
    );
    let of_two = slice(
        "two",
        &format!("{{name: t, port: {t}, protocol: TCP}}"),
        &[first, second],
    );
    format!(
        "---
apiVersion: v1
kind: Service
metadata: {{name: one, namespace: default}}
spec:
  type: NodePort
  clusterIP: {ONE}
  ports:
  - {{name: c, port: 80, targetPort: {c}, nodePort: 30080, protocol: TCP}}
  - {{name: s, port: 81, targetPort: {s}, nodePort: 30081, protocol: TCP}}
  - {{name: q, port: 53, targetPort: {q}, nodePort: 30053, protocol: UDP}}
  - {{name: h, port: 82, targetPort: {h}, nodePort: 30082, protocol: TCP}}
{of_one}---
apiVersion: v1
kind: Service
metadata: {{name: two, namespace: default}}
spec: {{clusterIP: {TWO}, ports: [{{name: t, port: 80, targetPort: {t}, protocol: TCP}}]}}
{of_two}"
    )
}
