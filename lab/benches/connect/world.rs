// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node with a client's and a server's pod, with the kernel settings of a bare node or of one
//! that kube-proxy needs. Also the objects for an agent on it.

use std::{
    fmt::Write,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use anyhow::{Context, Result};

use lab::{
    load::{
        server,
        setup::{CLIENT_PARAMETERS, Setup},
    },
    node::{
        cgroup::Cgroup,
        layout::Layout,
        netns::NetNs,
        topology::{Plumbing, Topology},
    },
};

const NODE: Ipv4Addr = Ipv4Addr::new(192, 168, 40, 2);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 40, 1, 10);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 40, 1, 20);
/// The server's other address. The client reaches it through the node's stack, also if pods are
/// bridged.
const ROUTED: Ipv4Addr = Ipv4Addr::new(10, 40, 1, 21);
/// The server's port that the service leads to.
const SERVICE_PORT: u16 = 8080;
/// The server's port for direct calls, so that no two connections have the same addresses and
/// ports.
const DIRECT_PORT: u16 = 8081;
const ROUTED_PORT: u16 = 8082;

/// The server's own address and a port of its own: called without a service.
pub(crate) const DIRECT: SocketAddr = SocketAddr::new(IpAddr::V4(SERVER), DIRECT_PORT);
/// The server's own address with the port that the service leads to.
pub(crate) const BEHIND_SERVICE: SocketAddr = SocketAddr::new(IpAddr::V4(SERVER), SERVICE_PORT);
/// The server's other address: reached through the node's stack without a proxy.
pub(crate) const THROUGH_STACK: SocketAddr = SocketAddr::new(IpAddr::V4(ROUTED), ROUTED_PORT);

pub(crate) struct World {
    topology: Topology,
    cgroup: Cgroup,
}

impl World {
    pub(crate) fn new(plumbing: Plumbing, setup: Setup) -> Result<Self> {
        let layout = Layout {
            node: vec![NODE.into()],
            pods: vec![vec![CLIENT.into()], vec![SERVER.into()]],
            ..Layout::default()
        };
        let topology = Topology::build(layout, plumbing)?;
        let cgroup = Cgroup::new()?;
        if plumbing == Plumbing::Bridge {
            let gateway = topology.node_addresses.last().context("the bridge's")?;
            topology.pods[1].ip(&format!("addr add {ROUTED}/24 dev eth0\n"))?;
            topology.pods[0].ip(&format!("route add {ROUTED}/32 via {gateway} dev eth0\n"))?;
            server::serve_at(&topology.pods[1], &cgroup, (ROUTED, ROUTED_PORT), 0)?;
        }
        setup.apply(&topology.node)?;
        topology.pods[0].set(&CLIENT_PARAMETERS)?;
        server::serve(&topology.pods[1], &cgroup, &[SERVICE_PORT, DIRECT_PORT], 0)?;
        Ok(Self { topology, cgroup })
    }

    pub(crate) fn node(&self) -> &NetNs {
        &self.topology.node
    }

    pub(crate) fn client(&self) -> &NetNs {
        &self.topology.pods[0]
    }

    pub(crate) fn cgroup(&self) -> &Cgroup {
        &self.cgroup
    }
}

/// Returns the cluster IP of service `number`, which begins at 1.
fn cluster_ip(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(Ipv4Addr::new(10, 96, 1, 0).to_bits() + number)
}

/// Returns the address and port of the last of `count` services, the only one with the server as
/// its endpoint.
pub(crate) fn service(count: u32) -> SocketAddr {
    SocketAddr::new(cluster_ip(count).into(), 80)
}

/// Returns the manifests of a node and `count` services. The endpoints of all but the last service
/// are on another node.
pub(crate) fn objects(count: u32) -> Result<String> {
    let mut text = format!(
        "apiVersion: v1
kind: Node
metadata: {{name: node-a, resourceVersion: '1'}}
status: {{addresses: [{{type: InternalIP, address: {NODE}}}]}}
"
    );
    for number in 1..=count {
        let (pod, node) = if number == count {
            (SERVER, "node-a")
        } else {
            (
                Ipv4Addr::from_bits(Ipv4Addr::new(10, 128, 0, 0).to_bits() + number),
                "node-b",
            )
        };
        write!(
            text,
            "---
apiVersion: v1
kind: Service
metadata: {{name: s{number}, namespace: bench}}
spec:
  clusterIP: {ip}
  ports:
  - {{name: t, port: 80, targetPort: {SERVICE_PORT}, protocol: TCP}}
  - {{name: u, port: 80, targetPort: {SERVICE_PORT}, protocol: UDP}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: s{number}, namespace: bench, labels: {{kubernetes.io/service-name: s{number}}}}}
addressType: IPv4
ports:
- {{name: t, port: {SERVICE_PORT}, protocol: TCP}}
- {{name: u, port: {SERVICE_PORT}, protocol: UDP}}
endpoints: [{{addresses: [{pod}], nodeName: {node}}}]
",
            ip = cluster_ip(number)
        )?;
    }
    Ok(text)
}
