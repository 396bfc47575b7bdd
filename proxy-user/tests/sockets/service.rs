// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Services as manifests, and their addresses.

use std::net::SocketAddr;

use lab::load::manifests::{self, Port, endpoint};
use serde_json::{Value, json};

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

    /// Returns the manifests of the service, and of a slice for each endpoint.
    fn manifests(&self) -> Vec<Value> {
        let number = self.number;
        let name = format!("s{number}");
        let cluster_ips = [format!("172.30.0.{number}"), format!("fd00:30::{number}")];
        let node_port = 30_000 + u16::from(number);
        let numbers = [self.port, PORT];
        let ports = [Port::new(("", self.protocol), numbers, Some(node_port))];
        let spec = json!({
            "type": "NodePort",
            "clusterIP": cluster_ips[0],
            "clusterIPs": cluster_ips,
            "ipFamilies": ["IPv4", "IPv6"],
            "sessionAffinity": if self.affinity { "ClientIP" } else { "None" },
            "internalTrafficPolicy": if self.local { "Local" } else { "Cluster" },
            "externalIPs": self.external_ip.as_slice(),
        });
        let slice = |address: String, node, weight: u16| {
            let mut slice = manifests::slice(&name, &ports, [endpoint(&address, node)]);
            let id = address.replace([':', '.'], "-");
            slice["metadata"]["name"] = format!("{name}-{id}").into();
            let weight = json!({"service.portolan.dev/weight": weight.to_string()});
            slice["metadata"]["annotations"] = weight;
            if address.contains(':') {
                slice["addressType"] = "IPv6".into();
            }
            slice
        };
        let mut all = vec![manifests::service(&name, &ports, spec)];
        for Endpoint { pod, weight } in &self.endpoints {
            all.push(slice(format!("10.40.1.{pod}"), "node-a", *weight));
            all.push(slice(format!("fd00:40:0:1::{pod}"), "node-a", *weight));
        }
        if self.far {
            all.push(slice("10.40.2.9".into(), "node-b", 1));
        }
        all
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
    let range = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
        "metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["172.30.0.0/16"]}
    });
    let node = manifests::node(NODE.parse().expect("an address"), version);
    let mut all = vec![node, range];
    all.extend(services.iter().flat_map(Service::manifests));
    manifests::text(&all)
}
