// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The objects of the tests: the node, and services with their endpoints.

use std::fmt::{self, Display};

use serde_json::{Value, json};

/// The range of all cluster IPs.
pub(crate) const SERVICE_CIDR: &str = "{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: kubernetes}, spec: {cidrs: [172.30.0.0/16]}}";

/// The namespace of the services, for an API server.
pub(crate) const NAMESPACE: &str = "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}";

/// The port at which endpoints serve.
const TARGET: u16 = 8080;

/// The Node object with these internal addresses, in this version.
pub(crate) fn node_object(addresses: &[impl Display], version: u64) -> String {
    let addresses = addresses.iter().map(ToString::to_string);
    let addresses = addresses.map(|ip| json!({"type": "InternalIP", "address": ip}));
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "node-a", "resourceVersion": version.to_string()},
        "status": {"addresses": addresses.collect::<Vec<_>>()}
    })
    .to_string()
}

/// A UDP service of the pod that answers, without a node port.
pub(crate) fn questions() -> Service {
    Service::new("questions", "172.30.1.9").ports(&[("", "UDP", 53, None)])
}

/// A service in the namespace `shop`, and its EndpointSlice. Its text is the manifest of both.
#[derive(Clone)]
pub(crate) struct Service {
    object: Value,
    slice: Value,
}

impl Service {
    /// A service of type NodePort at port 80, whose endpoint is the pod that answers. Its node port
    /// is 30000 plus the last number of the cluster IP.
    pub(crate) fn new(name: &str, cluster_ip: &str) -> Self {
        let last = cluster_ip.rsplit(['.', ':']).next();
        let last = last.and_then(|last| last.parse::<u16>().ok());
        let last = last.expect("a cluster IP");
        let [family, server] = match cluster_ip.contains(':') {
            true => ["IPv6", "fd00:40::20"],
            false => ["IPv4", "10.40.1.20"],
        };
        let object = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": name, "namespace": "shop"},
            "spec": {
                "type": "NodePort", "clusterIP": cluster_ip, "clusterIPs": [cluster_ip],
                "ipFamilies": [family]
            }
        });
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family,
            "metadata": {
                "name": format!("{name}-1"), "namespace": "shop",
                "labels": {"kubernetes.io/service-name": name}
            },
            "endpoints": [endpoint(server)]
        });
        Self { object, slice }.ports(&[("", "TCP", 80, Some(30_000 + last))])
    }

    /// The name of a file for its manifest.
    pub(crate) fn file(&self) -> String {
        let name = self.object["metadata"]["name"].as_str();
        format!("{}.yaml", name.expect("a name"))
    }

    /// Sets a field of the specification.
    pub(crate) fn with(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.object["spec"][field] = value.into();
        self
    }

    /// Replaces all ports: name, protocol, port, node port. Without node ports it is a ClusterIP.
    pub(crate) fn ports(mut self, ports: &[(&str, &str, u16, Option<u16>)]) -> Self {
        let of_service = ports.iter().map(|(name, protocol, port, node_port)| {
            let mut one = json!({"protocol": protocol, "port": port});
            if !name.is_empty() {
                one["name"] = (*name).into();
            }
            if let Some(node_port) = node_port {
                one["nodePort"] = (*node_port).into();
            }
            one
        });
        self.object["spec"]["ports"] = of_service.collect();
        if ports.iter().all(|(.., node_port)| node_port.is_none()) {
            self.object["spec"]["type"] = "ClusterIP".into();
        }
        let of_endpoints = ports.iter().map(
            |(name, protocol, ..)| json!({"name": name, "protocol": protocol, "port": TARGET}),
        );
        self.of_slice("ports", of_endpoints.collect())
    }

    fn of_slice(mut self, field: &str, value: Value) -> Self {
        self.slice[field] = value;
        self
    }

    /// Changes the port at which the endpoints of a service with one port serve.
    pub(crate) fn target(self, target: u16) -> Self {
        let ports = json!([{"name": "", "protocol": "TCP", "port": target}]);
        self.of_slice("ports", ports)
    }

    pub(crate) fn endpoints(self, endpoints: Vec<Value>) -> Self {
        self.of_slice("endpoints", endpoints.into())
    }

    /// Moves all endpoints to this node.
    pub(crate) fn on(mut self, node: &str) -> Self {
        let endpoints = self.slice["endpoints"].as_array_mut();
        for endpoint in endpoints.into_iter().flatten() {
            endpoint["nodeName"] = node.into();
        }
        self
    }

    pub(crate) fn labelled(mut self, key: &str, value: &str) -> Self {
        self.object["metadata"]["labels"][key] = value.into();
        self
    }

    /// Sets `externalTrafficPolicy: Local`.
    pub(crate) fn local(self) -> Self {
        self.with("externalTrafficPolicy", "Local")
    }

    /// Makes it of type LoadBalancer, with the policy Local and this health check node port.
    pub(crate) fn checked_at(self, port: u16) -> Self {
        let balanced = self.local().with("type", "LoadBalancer");
        balanced.with("healthCheckNodePort", port)
    }

    /// Sets `sessionAffinity: ClientIP`.
    pub(crate) fn sticky(self) -> Self {
        self.with("sessionAffinity", "ClientIP")
    }
}

impl Display for Service {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(to, "{}\n---\n{}", self.object, self.slice)
    }
}

/// An endpoint on this node.
pub(crate) fn endpoint(address: &str) -> Value {
    json!({"addresses": [address], "nodeName": "node-a"})
}

/// An endpoint on this node that is this pod: whether it is ready, serving, terminating.
pub(crate) fn pod_endpoint(address: &str, pod: &str, [ready, serving, ending]: [bool; 3]) -> Value {
    let mut endpoint = endpoint(address);
    endpoint["conditions"] = json!({"ready": ready, "serving": serving, "terminating": ending});
    endpoint["targetRef"] = json!({"kind": "Pod", "name": pod});
    endpoint
}
