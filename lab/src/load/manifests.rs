// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The objects of a cluster as manifests: for an agent without an API server, and for kubectl.

use std::net::Ipv4Addr;

use serde::Serialize;
use serde_json::{Value, json};

/// A port of a service, and the port of its pods behind it.
#[derive(Clone, Copy)]
pub struct Port<'a> {
    name: &'a str,
    protocol: &'a str,
    port: u16,
    target: u16,
    node_port: Option<u16>,
}

impl<'a> Port<'a> {
    pub const fn new(
        (name, protocol): (&'a str, &'a str),
        [port, target]: [u16; 2],
        node_port: Option<u16>,
    ) -> Self {
        Self {
            name,
            protocol,
            port,
            target,
            node_port,
        }
    }
}

/// Returns a Service in the namespace `default`; `spec` has all fields but the ports.
pub fn service(name: &str, ports: &[Port<'_>], mut spec: Value) -> Value {
    let port = |port: &Port<'_>| {
        let mut object = json!({
            "name": port.name, "protocol": port.protocol, "port": port.port, "targetPort": port.target
        });
        if let Some(number) = port.node_port {
            object["nodePort"] = number.into();
        }
        object
    };
    spec["ports"] = ports.iter().map(port).collect();
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": "default"}, "spec": spec
    })
}

/// Returns the EndpointSlice of a service.
pub fn slice(
    service: &str,
    ports: &[Port<'_>],
    endpoints: impl IntoIterator<Item = Value>,
) -> Value {
    let port = |port: &Port<'_>| json!({"name": port.name, "protocol": port.protocol, "port": port.target});
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "name": format!("{service}-a"), "namespace": "default",
            "labels": {"kubernetes.io/service-name": service}
        },
        "ports": ports.iter().map(port).collect::<Vec<_>>(),
        "endpoints": endpoints.into_iter().collect::<Vec<_>>()
    })
}

/// Returns a ready endpoint of an EndpointSlice.
pub fn endpoint(address: impl Serialize, node: &str) -> Value {
    json!({"addresses": [address], "nodeName": node, "conditions": {"ready": true}})
}

/// Returns the Node object `node-a` with its InternalIP and resource version.
pub fn node(address: Ipv4Addr, version: u64) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "node-a", "resourceVersion": version.to_string()},
        "status": {"addresses": [{"type": "InternalIP", "address": address}]}
    })
}

/// Returns the objects as one YAML text.
pub fn text(objects: &[Value]) -> String {
    let objects: Vec<_> = objects.iter().map(Value::to_string).collect();
    objects.join("\n---\n")
}
