// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The addresses of one family, and the Kubernetes objects that name them.

use std::net::{IpAddr, SocketAddr};

use super::world::Through;

const PORT: u16 = 8080;
const NODE_PORT: u16 = 30_080;

/// The addresses of the test in one address family.
pub(super) struct Cluster {
    /// The links from the node to the client outside: both ends of each.
    pub(super) to_client: [[IpAddr; 2]; 3],
    /// The links from the node to the backend behind the routers: both ends of each.
    pub(super) to_backend: [[IpAddr; 2]; 3],
    pub(super) client_pod: IpAddr,
    pub(super) backend_pod: IpAddr,
    cluster_ip: IpAddr,
}

impl Cluster {
    pub(super) fn of(v6: bool) -> Self {
        let address = |text: &str| text.parse().expect("an address");
        let ends = |v4: &str, in_v6: &str| {
            [1, 2].map(|last| {
                address(&if v6 {
                    format!("{in_v6}{last}")
                } else {
                    format!("{v4}{last}")
                })
            })
        };
        Self {
            to_client: [
                ends("192.168.40.", "fd00:c0::"),
                ends("192.168.41.", "fd00:c0:1::"),
                ends("203.0.113.", "2001:db8:113::"),
            ],
            to_backend: [
                ends("192.168.42.", "fd00:c0:2::"),
                ends("192.168.43.", "fd00:c0:3::"),
                ends("10.40.2.", "fd00:40:0:2::"),
            ],
            client_pod: address(if v6 { "fd00:40:0:1::10" } else { "10.40.1.10" }),
            backend_pod: address(if v6 { "fd00:40:0:1::20" } else { "10.40.1.20" }),
            cluster_ip: address(if v6 { "fd00:30::1" } else { "172.30.0.1" }),
        }
    }

    /// The address and port at which the backend serves.
    pub(super) fn backend(&self, through: Through) -> SocketAddr {
        let address = match through {
            Through::Preserved(_) => self.backend_pod,
            Through::ToNode(_) => self.to_client[0][0],
            _ => self.to_backend[2][1],
        };
        SocketAddr::new(address, PORT)
    }

    /// The frontend that the client sends to.
    pub(super) fn service(&self, through: Through) -> SocketAddr {
        if through.is_from_outside() {
            SocketAddr::new(self.to_client[0][0], NODE_PORT)
        } else {
            SocketAddr::new(self.cluster_ip, 80)
        }
    }

    /// The manifest of the node and one service over TCP and UDP.
    pub(super) fn objects(&self, through: Through) -> String {
        let family = if self.cluster_ip.is_ipv6() {
            "IPv6"
        } else {
            "IPv4"
        };
        let (policy, node) = match through {
            Through::Preserved(_) | Through::ToNode(_) => ("Local", "node-a"),
            _ => ("Cluster", "node-b"),
        };
        let (node_ip, cluster_ip) = (self.to_client[0][0], self.cluster_ip);
        let backend = self.backend(through).ip();
        format!(
            "apiVersion: v1
kind: Node
metadata: {{name: node-a, resourceVersion: '1'}}
status: {{addresses: [{{type: InternalIP, address: '{node_ip}'}}]}}
---
apiVersion: v1
kind: Service
metadata: {{name: web, namespace: shop}}
spec:
  type: NodePort
  clusterIP: '{cluster_ip}'
  clusterIPs: ['{cluster_ip}']
  ipFamilies: [{family}]
  externalTrafficPolicy: {policy}
  ports:
  - {{name: tcp, protocol: TCP, port: 80, targetPort: {PORT}, nodePort: {NODE_PORT}}}
  - {{name: udp, protocol: UDP, port: 80, targetPort: {PORT}, nodePort: {NODE_PORT}}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web, namespace: shop, labels: {{kubernetes.io/service-name: web}}}}
addressType: {family}
ports: [{{name: tcp, protocol: TCP, port: {PORT}}}, {{name: udp, protocol: UDP, port: {PORT}}}]
endpoints: [{{addresses: ['{backend}'], nodeName: {node}}}]
"
        )
    }
}
