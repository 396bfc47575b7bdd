// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The cluster's objects after each step of a test case: kept as YAML text and rendered into the
//! one manifest file that the agent reads.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    net::{IpAddr, SocketAddr},
};

use anyhow::{Context, Result, bail};
use proxy_common::Protocol;
use serde::Deserialize;

use super::{format::Node, parse::parse_protocol};

/// The cluster's objects as YAML text. Key: kind, namespace and name.
#[derive(Default)]
pub struct ClusterState {
    objects: BTreeMap<[String; 3], String>,
}

impl ClusterState {
    /// Removes the object that is named as Kind/namespace/name.
    pub fn delete(&mut self, object: &str) -> Result<()> {
        let [kind, namespace, name] = object.split('/').collect::<Vec<_>>()[..] else {
            bail!("delete {object}: write Kind/namespace/name");
        };
        let key = [kind, namespace, name].map(str::to_owned);
        if self.objects.remove(&key).is_none() {
            bail!("delete {object}: no such object at this step");
        }
        Ok(())
    }

    /// Adds the objects of a YAML stream; an object replaces the one with the same kind, namespace
    /// and name.
    pub fn apply(&mut self, yaml: &str) -> Result<()> {
        for document in documents(yaml) {
            let header: Header =
                serde_saphyr::from_str(&document).with_context(|| format!("apply:\n{document}"))?;
            let namespace = header
                .metadata
                .namespace
                .unwrap_or_else(|| "default".to_owned());
            self.objects
                .insert([header.kind, namespace, header.metadata.name], document);
        }
        Ok(())
    }

    /// Returns the manifest file: the Node object with the resource version `version`, then every
    /// object.
    pub fn render(&self, node: &Node, version: u64) -> String {
        let mut text = node_manifest(node, version);
        for object in self.objects.values() {
            let _ = write!(text, "---\n{}\n", object.trim_end());
        }
        text
    }
}

fn node_manifest(node: &Node, version: u64) -> String {
    let mut internal: Vec<&IpAddr> = Vec::new();
    for v4 in [true, false] {
        internal.extend(node.ips.iter().find(|ip| ip.is_ipv4() == v4));
    }
    internal.sort_by_key(|ip| node.ips.iter().position(|other| other == *ip));
    let addresses: Vec<_> = internal
        .iter()
        .map(|ip| serde_json::json!({"type": "InternalIP", "address": ip}))
        .collect();
    // JSON is YAML, and quotes every character that a label may contain.
    let node = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name, "labels": node.labels, "resourceVersion": version.to_string()},
        "status": {"addresses": addresses},
    });
    format!("{node}\n")
}

/// Returns the documents of a YAML stream as they were written, without those that are empty or
/// hold only comments.
pub fn documents(yaml: &str) -> Vec<String> {
    let mut documents = vec![String::new()];
    for line in yaml.lines() {
        let rest = line
            .strip_prefix("---")
            .filter(|rest| rest.is_empty() || rest.starts_with([' ', '\t']));
        if let Some(rest) = rest {
            documents.push(String::new());
            if rest.trim().is_empty() {
                continue;
            }
        }
        if let Some(last) = documents.last_mut() {
            last.push_str(rest.unwrap_or(line));
            last.push('\n');
        }
    }
    documents.retain(|document| {
        document
            .lines()
            .any(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#'))
    });
    documents
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
    let mut found = BTreeSet::new();
    for document in documents(yaml) {
        let header: Header =
            serde_saphyr::from_str(&document).with_context(|| format!("read:\n{document}"))?;
        if header.kind != "EndpointSlice" {
            continue;
        }
        let slice: Slice =
            serde_saphyr::from_str(&document).with_context(|| format!("read:\n{document}"))?;
        for port in slice.ports.into_iter().flatten() {
            let protocol = port
                .protocol
                .as_deref()
                .map_or(Some(Protocol::TCP), parse_protocol);
            let number = port.port.and_then(|number| u16::try_from(number).ok());
            let (Some(number), Some(protocol)) = (number, protocol) else {
                continue;
            };
            for endpoint in slice.endpoints.iter().flatten() {
                let local = endpoint.node_name.as_deref() == Some(node);
                let addresses = endpoint
                    .addresses
                    .iter()
                    .filter_map(|text| text.parse::<IpAddr>().ok());
                found.extend(addresses.map(|ip| Endpoint {
                    address: SocketAddr::new(ip, number),
                    protocol,
                    local,
                }));
            }
        }
    }
    Ok(found)
}

#[derive(Deserialize)]
struct Header {
    kind: String,
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
    namespace: Option<String>,
}

#[derive(Deserialize)]
struct Slice {
    ports: Option<Vec<SlicePort>>,
    endpoints: Option<Vec<SliceEndpoint>>,
}

#[derive(Deserialize)]
struct SlicePort {
    port: Option<i64>,
    protocol: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SliceEndpoint {
    addresses: Vec<String>,
    node_name: Option<String>,
}
