// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The cluster's objects after each step of a test case, as the one manifest file of the agent.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use anyhow::{Context, Result, ensure};
use proxy_common::Protocol;
use serde_json::{Value, json};

use super::{format::Node, parse::parse_protocol};

/// An object's kind, namespace (empty for a node) and name.
pub(super) type Key = [String; 3];

#[derive(Default)]
pub struct ClusterState(BTreeMap<Key, Value>);

impl ClusterState {
    /// Removes the object that is named as Kind/namespace/name.
    pub fn delete(&mut self, object: &str) -> Result<()> {
        let words: Vec<_> = object.split('/').map(str::to_owned).collect();
        let key = Key::try_from(words).ok();
        let key = key.with_context(|| format!("delete {object}: write Kind/namespace/name"))?;
        let removed = self.0.remove(&key).map(drop);
        removed.with_context(|| format!("delete {object}: no such object at this step"))
    }

    /// Adds the objects of a YAML stream; each replaces the one with its kind, namespace and name.
    pub fn apply(&mut self, yaml: &str) -> Result<()> {
        for object in documents(yaml).context("apply")? {
            let key = key(&object);
            let [kind, _, name] = &key;
            ensure!(
                !kind.is_empty() && !name.is_empty(),
                "apply: an object needs a kind and a name: {object}"
            );
            self.0.insert(key, object);
        }
        Ok(())
    }

    /// Returns the manifest file: the Node object with the resource version `version`, then every
    /// object. JSON is YAML, and quotes every character that a label may contain.
    pub fn render(&self, node: &Node, version: u64) -> String {
        let mut texts = vec![node_object(node, version).to_string()];
        texts.extend(self.0.values().map(Value::to_string));
        texts.join("\n---\n") + "\n"
    }
}

fn node_object(node: &Node, version: u64) -> Value {
    let is_first = |ip: &&IpAddr| {
        let family = node.ips.iter();
        let mut family = family.filter(|other| other.is_ipv4() == ip.is_ipv4());
        family.next() == Some(*ip)
    };
    let addresses = node.ips.iter().filter(is_first);
    let addresses = addresses.map(|ip| json!({"type": "InternalIP", "address": ip}));
    let addresses: Vec<_> = addresses.collect();
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name, "labels": node.labels, "resourceVersion": version.to_string()},
        "status": {"addresses": addresses},
    })
}

/// Returns the objects of a YAML stream.
pub(super) fn documents(yaml: &str) -> Result<Vec<Value>> {
    serde_saphyr::from_multiple(yaml).with_context(|| format!("read:\n{yaml}"))
}

pub(super) fn key(object: &Value) -> Key {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (kind, metadata) = (text(&object["kind"]), &object["metadata"]);
    let namespace = match metadata["namespace"].as_str() {
        _ if kind == "Node" => "",
        namespace => namespace.unwrap_or("default"),
    };
    [kind, namespace.to_owned(), text(&metadata["name"])]
}

/// An endpoint's address and port in an EndpointSlice: a test server must listen there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Endpoint {
    pub address: SocketAddr,
    pub protocol: Protocol,
    /// Whether the EndpointSlice says that the endpoint runs on the node under test.
    pub local: bool,
}

/// Returns every endpoint port in a manifest's EndpointSlices. Endpoints with a host name instead
/// of an address are left out. `node` is the name of the node under test.
pub fn endpoints(yaml: &str, node: &str) -> Result<BTreeSet<Endpoint>> {
    let array = |value: &Value| value.as_array().cloned().unwrap_or_default().into_iter();
    let mut found = BTreeSet::new();
    let slices = documents(yaml)?.into_iter();
    for slice in slices.filter(|object| object["kind"] == "EndpointSlice") {
        for port in array(&slice["ports"]) {
            let protocol = port["protocol"].as_str();
            let protocol = protocol.map_or(Some(Protocol::TCP), parse_protocol);
            let number = port["port"].as_u64().map(u16::try_from);
            let (Some(Ok(number)), Some(protocol)) = (number, protocol) else {
                continue;
            };
            for endpoint in array(&slice["endpoints"]) {
                let addresses = array(&endpoint["addresses"]);
                let addresses = addresses.filter_map(|ip| ip.as_str()?.parse::<IpAddr>().ok());
                found.extend(addresses.map(|ip| Endpoint {
                    address: SocketAddr::new(ip, number),
                    protocol,
                    local: endpoint["nodeName"] == node,
                }));
            }
        }
    }
    Ok(found)
}
