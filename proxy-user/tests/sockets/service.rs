// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Services as YAML manifests, and their addresses.

use std::{collections::BTreeMap, net::SocketAddr};

use crate::world::{NODE, PORT};

/// The annotation of an EndpointSlice that gives its endpoints a weight.
const WEIGHT: &str = "service.portolan.dev/weight";

/// A service with one port, from which a manifest is made.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) name: &'static str,
    /// The last number of its cluster IPs, 172.30.0.N and fd00:30::N.
    pub(crate) number: u8,
    pub(crate) protocol: &'static str,
    pub(crate) port: u16,
    /// The pods that are its endpoints, by the last number of their addresses.
    pub(crate) endpoints: Vec<u8>,
    /// The weights of endpoints, by pod; without one, 1.
    pub(crate) weights: BTreeMap<u8, u16>,
    /// YAML lines that are added to the spec.
    pub(crate) spec: &'static str,
}

impl Service {
    pub(crate) fn new(number: u8, protocol: &'static str, endpoints: &[u8]) -> Self {
        Self {
            name: ["zero", "one", "two", "three", "four", "five"][usize::from(number)],
            number,
            protocol,
            port: 80,
            endpoints: endpoints.to_vec(),
            weights: BTreeMap::new(),
            spec: "",
        }
    }

    fn render(&self) -> String {
        let Self {
            name,
            number,
            protocol,
            port,
            spec,
            ..
        } = self;
        let node_port = 30_000 + u16::from(*number);
        let mut text = format!(
            "---
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: shop}}
spec:
  type: NodePort
  clusterIP: 172.30.0.{number}
  clusterIPs: [172.30.0.{number}, 'fd00:30::{number}']
  ipFamilies: [IPv4, IPv6]
  ports: [{{port: {port}, targetPort: {PORT}, nodePort: {node_port}, protocol: {protocol}}}]
{spec}
"
        );
        for (family, prefix) in [("IPv4", "10.40.1."), ("IPv6", "fd00:40:0:1::")] {
            for (weight, pods) in self.by_weight() {
                let endpoints = pods
                    .iter()
                    .map(|last| format!("{{addresses: ['{prefix}{last}'], nodeName: node-a}}"));
                let endpoints: Vec<_> = endpoints.collect();
                let (more, annotations) = weight.map_or_else(Default::default, |weight| {
                    let annotation = format!("annotations: {{{WEIGHT}: '{weight}'}}, ");
                    (format!("-{weight}"), annotation)
                });
                text += &format!(
                    "---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {name}-{family}{more}, namespace: shop, {annotations}labels: {{kubernetes.io/service-name: {name}}}}}
addressType: {family}
ports: [{{name: '', protocol: {protocol}, port: {PORT}}}]
endpoints: [{}]
",
                    endpoints.join(", ")
                );
            }
        }
        text
    }

    /// Returns the endpoints of each weight; those without one are there in any case.
    fn by_weight(&self) -> BTreeMap<Option<u16>, Vec<u8>> {
        let mut groups = BTreeMap::from([(None, Vec::new())]);
        for pod in &self.endpoints {
            let weight = self.weights.get(pod).copied();
            groups.entry(weight).or_default().push(*pod);
        }
        groups
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

pub(crate) fn vip6(number: u8) -> SocketAddr {
    address(&format!("[fd00:30::{number}]:80"))
}

pub(crate) fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address and port")
}

/// Returns the manifests of services and of the Node, whose version the agent shows once applied.
pub(crate) fn objects(version: u64, services: &[Service]) -> String {
    let mut text = format!(
        "apiVersion: v1
kind: Node
metadata: {{name: node-a, resourceVersion: '{version}'}}
status: {{addresses: [{{type: InternalIP, address: {NODE}}}]}}
"
    );
    for service in services {
        text += &service.render();
    }
    text
}
