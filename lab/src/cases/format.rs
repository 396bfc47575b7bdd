// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The conformance format (conformance/FORMAT.md) as types. Unknown fields are errors that name the
//! file, the line and the field.

use std::{
    collections::BTreeMap,
    fmt,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use ipnet::IpNet;
use proxy_common::Protocol;
use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::json;

use crate::node::settings::Forwarding;

/// One scenario.
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
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Node {
    pub name: String,
    /// The first of a family is its InternalIP.
    pub ips: Vec<IpAddr>,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Cluster-wide.
    #[serde(default, rename = "podCIDRs")]
    pub pod_cidrs: Vec<IpNet>,
}

/// Agent settings under kube-proxy's names; what is left out keeps its default.
#[derive(Deserialize, Debug, Default)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Config {
    pub masquerade_all: Option<bool>,
    pub node_port_addresses: Option<Vec<String>>,
    pub local_detection: Option<String>,
}

impl Config {
    /// The ranges of pods that the agent is told, by which it tells them from other clients.
    pub fn cluster_cidrs<'a>(&self, ranges: &'a [IpNet]) -> &'a [IpNet] {
        match self.local_detection.as_deref() {
            Some("none") => &[],
            _ => ranges,
        }
    }
    /// The agent's configuration file; empty where every setting keeps its default.
    pub fn render(&self, forwarding: Forwarding) -> String {
        let mut settings = serde_json::Map::new();
        if forwarding != Forwarding::Stack {
            let own = json!({"forwarding": forwarding.name()});
            settings.insert("portolan".to_owned(), own);
        }
        if let Some(masquerade_all) = self.masquerade_all {
            settings.insert(
                "iptables".to_owned(),
                json!({"masqueradeAll": masquerade_all}),
            );
        }
        if let Some(addresses) = &self.node_port_addresses {
            settings.insert("nodePortAddresses".to_owned(), json!(addresses));
        }
        // JSON is YAML.
        if settings.is_empty() {
            return String::new();
        }
        serde_json::Value::Object(settings).to_string()
    }
}

/// Objects to change, then flows to check.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Step {
    #[serde(default)]
    pub apply: Option<String>,
    /// Kind/namespace/name.
    #[serde(default)]
    pub delete: Vec<String>,
    #[serde(default)]
    pub flows: Vec<Flow>,
}

/// A client, what it calls, and what must become of it.
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

/// Which source ports the connections of a flow use.
#[derive(Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum SourcePorts {
    /// One port, in every step that says so for the same client and destination.
    Same,
}

/// What an HTTP GET on the node's health check node port must return.
#[derive(Deserialize, Debug, Clone, Copy)]
#[serde(deny_unknown_fields)]
pub struct Health {
    pub port: u16,
    pub status: u16,
}

/// When a flow holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expect {
    Backends(Backends),
    Reject,
    Drop,
    Untouched,
}

/// Who must answer, and how the client must look to them.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Backends {
    pub backends: Vec<SocketAddr>,
    /// None: not checked.
    #[serde(default)]
    pub masquerade: Option<bool>,
    #[serde(default)]
    pub sticky: bool,
}

impl fmt::Display for Expect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reject => f.write_str("reject"),
            Self::Drop => f.write_str("drop"),
            Self::Untouched => f.write_str("untouched"),
            Self::Backends(expected) => {
                let list: Vec<_> = expected
                    .backends
                    .iter()
                    .take(4)
                    .map(ToString::to_string)
                    .collect();
                let more = if expected.backends.len() > list.len() {
                    ", ..."
                } else {
                    ""
                };
                write!(f, "an answer by {}{more}", list.join(" or "))?;
                match expected.masquerade {
                    Some(true) => f.write_str(", masqueraded")?,
                    Some(false) => f.write_str(", source kept")?,
                    None => {}
                }
                f.write_str(if expected.sticky { ", sticky" } else { "" })
            }
        }
    }
}

impl<'de> Deserialize<'de> for Expect {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WordOrMap;
        impl<'de> Visitor<'de> for WordOrMap {
            type Value = Expect;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`reject`, `drop`, `untouched` or {backends: [...]}")
            }
            fn visit_str<E: Error>(self, word: &str) -> Result<Expect, E> {
                match word {
                    "reject" => Ok(Expect::Reject),
                    "drop" => Ok(Expect::Drop),
                    "untouched" => Ok(Expect::Untouched),
                    other => Err(E::unknown_variant(
                        other,
                        &["reject", "drop", "untouched", "{backends: [...]}"],
                    )),
                }
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Expect, A::Error> {
                Backends::deserialize(MapAccessDeserializer::new(map)).map(Expect::Backends)
            }
        }
        deserializer.deserialize_any(WordOrMap)
    }
}

const fn tcp() -> Protocol {
    Protocol::TCP
}

fn protocol<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Protocol, D::Error> {
    let name = String::deserialize(deserializer)?;
    parse_protocol(&name).ok_or_else(|| D::Error::unknown_variant(&name, &["TCP", "UDP", "SCTP"]))
}

/// Kubernetes' spelling of a protocol.
pub fn parse_protocol(name: &str) -> Option<Protocol> {
    match name {
        "TCP" => Some(Protocol::TCP),
        "UDP" => Some(Protocol::UDP),
        "SCTP" => Some(Protocol::SCTP),
        _ => None,
    }
}

fn pause<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let seconds = |number: &str, unit: f64| number.trim().parse::<f64>().ok().map(|n| n * unit);
    let parsed = if let Some(number) = text.strip_suffix("ms") {
        seconds(number, 0.001)
    } else if let Some(number) = text.strip_suffix('s') {
        seconds(number, 1.0)
    } else if let Some(number) = text.strip_suffix('m') {
        seconds(number, 60.0)
    } else {
        None
    };
    parsed
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .map(Some)
        .ok_or_else(|| {
            D::Error::custom(format!("`wait: {text}` is no pause: write 3s, 500ms or 1m"))
        })
}

impl Case {
    /// Reads one file.
    pub fn read(path: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        let case = Self::parse(&text).with_context(|| path.display().to_string())?;
        let stem = path
            .file_stem()
            .and_then(|stem| stem.to_str())
            .unwrap_or_default();
        ensure!(
            case.case == stem,
            "{}: the case is called {}: give file and case one name",
            path.display(),
            case.case
        );
        Ok(case)
    }

    /// Reads a case from text and checks what the types can't say.
    pub fn parse(text: &str) -> Result<Self> {
        let case: Self = serde_saphyr::from_str(text)?;
        ensure!(
            !case.node.ips.is_empty(),
            "node.ips is empty: name at least one address"
        );
        for (number, step) in (1..).zip(&case.steps) {
            for flow in &step.flows {
                flow.check()
                    .with_context(|| format!("step {number}, flow from {}", flow.from))?;
            }
        }
        Ok(case)
    }
}

impl Flow {
    fn check(&self) -> Result<()> {
        match (&self.to, &self.expect, &self.expect_health) {
            (Some(to), Some(_), None) => ensure!(
                to.is_ipv4() == self.from.is_ipv4(),
                "`from` and `to` ({to}) are of different families"
            ),
            (None, None, Some(_)) => {}
            _ => bail!("a flow has either `to` and `expect` or `expect_health` alone"),
        }
        ensure!(self.repeat != Some(0), "`repeat: 0` opens no connection");
        Ok(())
    }
}

/// Every case file of a folder, in order of their names.
pub fn files_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("read folder {}", folder.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry
            .with_context(|| format!("read folder {}", folder.display()))?
            .path();
        if path
            .extension()
            .is_some_and(|extension| extension == "yaml" || extension == "yml")
        {
            files.push(path);
        }
    }
    files.sort();
    ensure!(
        !files.is_empty(),
        "no case (*.yaml) in {}",
        folder.display()
    );
    Ok(files)
}
