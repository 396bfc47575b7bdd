// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The format of the conformance cases (conformance/FORMAT.md) as types; `parse` reads them.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use ipnet::IpNet;
use proxy_common::Protocol;
use serde::Deserialize;
use serde_json::json;

use super::parse::{pause, protocol, tcp};
use crate::node::{
    settings::{Forwarding, Xdp},
    topology::UPLINK,
};

/// One conformance case: a node, its settings, and steps to check on it.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Case {
    pub case: String,
    #[serde(default)]
    pub about: String,
    #[serde(default)]
    pub features: Vec<String>,
    pub node: Node,
    #[serde(default)]
    pub config: Config,
    #[serde(default)]
    pub steps: Vec<Step>,
}

/// The node under test.
#[derive(Deserialize, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Node {
    pub name: String,
    /// The first address of each family is the node's InternalIP.
    pub ips: Vec<IpAddr>,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The cluster's ranges of pod addresses, for all nodes.
    #[serde(default, rename = "podCIDRs")]
    pub pod_cidrs: Vec<IpNet>,
}

/// Agent settings with kube-proxy's names; a setting that is left out keeps its default.
#[derive(Deserialize, Debug, Default, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Config {
    pub masquerade_all: Option<bool>,
    pub node_port_addresses: Option<Vec<String>>,
    pub local_detection: Option<String>,
}

impl Config {
    /// Returns the ranges by which the agent recognises pods: its `clusterCIDR`.
    pub fn cluster_cidrs<'a>(&self, ranges: &'a [IpNet]) -> &'a [IpNet] {
        match self.local_detection.as_deref() {
            Some("none") => &[],
            _ => ranges,
        }
    }
    /// Returns the text of the agent's configuration file; empty if all settings have defaults.
    pub fn render(&self, forwarding: Forwarding, xdp: Xdp) -> String {
        let mut settings = json!({});
        if forwarding != Forwarding::Stack {
            settings["portolan"]["forwarding"] = json!(forwarding.name());
        }
        if xdp != Xdp::Off {
            settings["portolan"]["xdp"] = json!(xdp.name());
            settings["portolan"]["xdpInterfaces"] = json!([UPLINK]);
        }
        if let Some(masquerade_all) = self.masquerade_all {
            settings["iptables"]["masqueradeAll"] = json!(masquerade_all);
        }
        if let Some(addresses) = &self.node_port_addresses {
            settings["nodePortAddresses"] = json!(addresses);
        }
        // The settings are written as JSON, which is valid YAML.
        match settings == json!({}) {
            true => String::new(),
            false => settings.to_string(),
        }
    }
}

/// One step of a case: cluster objects to change, then flows to check.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Step {
    #[serde(default)]
    pub apply: Option<String>,
    /// Objects to delete, as Kind/namespace/name.
    #[serde(default)]
    pub delete: Vec<String>,
    #[serde(default)]
    pub flows: Vec<Flow>,
}

/// A client, the address that it calls, and the expected result.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Flow {
    pub from: IpAddr,
    #[serde(default)]
    pub to: Option<SocketAddr>,
    #[serde(default = "tcp", deserialize_with = "protocol")]
    pub protocol: Protocol,
    #[serde(default)]
    pub expect: Option<Expect>,
    #[serde(default)]
    pub expect_health: Option<Health>,
    #[serde(default)]
    pub repeat: Option<u32>,
    #[serde(default)]
    pub source_ports: Option<SourcePorts>,
    #[serde(default, deserialize_with = "pause")]
    pub wait: Option<Duration>,
}

/// Which source ports a flow's connections use. A flow without this setting uses any.
#[derive(Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum SourcePorts {
    /// One port for each client and destination, in all steps with this setting.
    Same,
}

/// What an HTTP GET on the node's health check node port must return.
#[derive(Deserialize, Debug, Clone, Copy)]
#[serde(deny_unknown_fields)]
pub struct Health {
    pub port: u16,
    pub status: u16,
}

/// The expected result of a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expect {
    Backends(Backends),
    Reject,
    Drop,
    Untouched,
}

/// The endpoints that may answer a flow, and the source address that they must see.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Backends {
    pub backends: Vec<SocketAddr>,
    /// Whether the endpoints must see a masqueraded source address; None: either is right.
    #[serde(default)]
    pub masquerade: Option<bool>,
    #[serde(default)]
    pub sticky: bool,
    /// The endpoints' shares of the connections, in the order of `backends`, compared with each
    /// other; empty if shares are not checked.
    #[serde(default)]
    pub shares: Vec<u32>,
}
