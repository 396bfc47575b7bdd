// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Services as YAML manifests, and their addresses.

use std::net::SocketAddr;

use crate::world::{NODE, PORT};

/// A service with one port, from which a manifest is made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Service {
    /// The last number of its cluster IPs, 172.30.0.N and fd00:30::N.
    pub(crate) number: u8,
    pub(crate) protocol: &'static str,
    pub(crate) port: u16,
    pub(crate) endpoints: Vec<Endpoint>,
    /// True for `sessionAffinity: ClientIP`.
    pub(crate) affinity: bool,
    /// True for `internalTrafficPolicy: Local`.
    pub(crate) local: bool,
    /// True if it also has an IPv4 endpoint on another node, which does not exist.
    pub(crate) far: bool,
    pub(crate) external_ip: Option<&'static str>,
}

/// An endpoint of a service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Endpoint {
    /// The pod, by the last number of its addresses.
    pub(crate) pod: u8,
    /// Its share of new connections; with 0 it keeps those that it has, and clients by affinity.
    pub(crate) weight: u16,
}

impl Service {
    /// Returns a service with these pods as its endpoints.
    pub(crate) fn new(number: u8, protocol: &'static str, pods: &[u8]) -> Self {
        let endpoint = |pod: &u8| Endpoint {
            pod: *pod,
            weight: 1,
        };
        Self {
            number,
            protocol,
            port: 80,
            endpoints: pods.iter().map(endpoint).collect(),
            affinity: false,
            local: false,
            far: false,
            external_ip: None,
        }
    }

    fn render(&self) -> String {
        let Self {
            number,
            protocol,
            port,
            ..
        } = self;
        let node_port = 30_000 + u16::from(*number);
        let mut text = format!(
            "---
apiVersion: v1
kind: Service
metadata: {{name: s{number}, namespace: shop}}
spec:
  type: NodePort
  clusterIP: 172.30.0.{number}
  clusterIPs: [172.30.0.{number}, 'fd00:30::{number}']
  ipFamilies: [IPv4, IPv6]
  ports: [{{port: {port}, targetPort: {PORT}, nodePort: {node_port}, protocol: {protocol}}}]
"
        );
        if self.affinity {
            text += "  sessionAffinity: ClientIP\n";
        }
        if self.local {
            text += "  internalTrafficPolicy: Local\n";
        }
        if let Some(ip) = self.external_ip {
            text += &format!("  externalIPs: ['{ip}']\n");
        }
        for Endpoint { pod, weight } in &self.endpoints {
            text += &self.slice("IPv4", &format!("10.40.1.{pod}"), "node-a", *weight);
            text += &self.slice("IPv6", &format!("fd00:40:0:1::{pod}"), "node-a", *weight);
        }
        if self.far {
            text += &self.slice("IPv4", "10.40.2.9", "node-b", 1);
        }
        text
    }

    /// Returns the EndpointSlice with one endpoint.
    fn slice(&self, family: &str, address: &str, node: &str, weight: u16) -> String {
        let Self {
            number, protocol, ..
        } = self;
        let name = address.replace([':', '.'], "-");
        format!(
            "---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: s{number}-{name}
  namespace: shop
  annotations: {{service.portolan.dev/weight: '{weight}'}}
  labels: {{kubernetes.io/service-name: s{number}}}
addressType: {family}
ports: [{{name: '', protocol: {protocol}, port: {PORT}}}]
endpoints: [{{addresses: ['{address}'], nodeName: {node}}}]
"
        )
    }
}

/// Returns two services over UDP: one with these endpoints, and one with pod 21.
pub(crate) fn two_over_udp(first: &[u8]) -> [Service; 2] {
    [Service::new(1, "UDP", first), Service::new(2, "UDP", &[21])]
}

/// Returns the IPv4 cluster IP of service `number` with port 80.
pub(crate) fn vip(number: u8) -> SocketAddr {
    SocketAddr::new([172, 30, 0, number].into(), 80)
}

pub(crate) fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address and port")
}

/// Returns the manifests of services, of the range of all cluster IPs, and of the Node, whose
/// version the agent shows once applied.
pub(crate) fn objects(version: u64, services: &[Service]) -> String {
    let mut text = format!(
        "apiVersion: v1
kind: Node
metadata: {{name: node-a, resourceVersion: '{version}'}}
status: {{addresses: [{{type: InternalIP, address: {NODE}}}]}}
---
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {{name: kubernetes}}
spec: {{cidrs: [172.30.0.0/16]}}
"
    );
    for service in services {
        text += &service.render();
    }
    text
}
