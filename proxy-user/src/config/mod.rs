// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Settings under kube-proxy's names: from a file, overridden by flags, validated. Built by `cli::run`,
//! used by `agent`.

#[cfg(test)]
mod tests;
mod values;

use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
};

use ipnet::IpNet;
use proxy_common::{
    Prefix, Settings, V4, V6, flow::IdleTimes, masquerade::PortRanges, settings::POD_RANGES,
};
use serde::Deserialize;

use crate::datapath::{Capacities, DEFAULT_PIN_DIR};

pub use values::duration;
use values::{
    bind_address, capacities, idle_times, invalid, masquerade_ports, node_port_addresses, ranges,
};

/// What the agent is to do, checked.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    pub cluster_cidr: Vec<IpNet>,
    pub hostname_override: Option<String>,
    pub masquerade_all: bool,
    pub node_port_addresses: NodePortAddresses,
    pub local_detection: LocalDetection,
    pub idle_times: IdleTimes,
    pub metrics_bind_address: SocketAddr,
    pub healthz_bind_address: SocketAddr,
    pub pin_directory: PathBuf,
    pub socket_balancing: SocketBalancing,
    /// Globs over cgroup paths whose processes' connections are left to the packet path.
    pub socket_exceptions: Vec<String>,
    /// No process of the node may bind a served node port.
    pub reserve_node_ports: bool,
    /// Globs over interface names that replace detection; empty means detection.
    pub interfaces: Vec<String>,
    pub masquerade: Masquerade,
    pub masquerade_ports: PortRanges,
    pub capacities: Capacities,
    pub log_level: String,
    /// The kernel programs log every packet of a service.
    pub log_packets: bool,
    /// Flag only: the node's addresses where its object has none.
    pub node_ips: Vec<IpAddr>,
    /// Flag only: the root of the cgroup2 hierarchy.
    pub cgroup_root: Option<PathBuf>,
}

/// On which of the node's addresses node ports are served.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NodePortAddresses {
    /// Every one, IPv4 loopback included.
    Every,
    /// The InternalIP of each family.
    Primary,
    /// Those in the ranges. KUBE: a family without a range has every one.
    Within(Vec<IpNet>),
}

impl NodePortAddresses {
    /// Whether node ports are served on an address of the node.
    pub fn serve(&self, address: IpAddr, internal_ips: &[IpAddr]) -> bool {
        // KUBE: the kernel routes nothing from ::1 to elsewhere, so node ports are not served on it.
        if address.is_ipv6() && address.is_loopback() {
            return false;
        }
        match self {
            Self::Every => true,
            Self::Primary => internal_ips.contains(&address),
            Self::Within(ranges) => {
                let mut of_family = ranges
                    .iter()
                    .filter(|range| range.addr().is_ipv4() == address.is_ipv4())
                    .peekable();
                of_family.peek().is_none() || of_family.any(|range| range.contains(&address))
            }
        }
    }
}

/// How pods are told from other clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
pub enum LocalDetection {
    #[serde(rename = "clusterCIDR")]
    ClusterCidr,
    #[serde(rename = "none")]
    None,
}

/// Whose connections are translated at the socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum SocketBalancing {
    /// Node processes' and pods'.
    #[default]
    All,
    /// Node processes' only.
    Host,
}

/// Who replaces the source address of flows that need it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Masquerade {
    #[default]
    Full,
    /// The node's own rules, which find the mark on the packet.
    Mark,
}

/// What can be said in the file, and by flags; nothing said means the default.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Source {
    #[serde(rename = "clusterCIDR")]
    pub cluster_cidr: Option<String>,
    pub hostname_override: Option<String>,
    pub masquerade_all: Option<bool>,
    pub node_port_addresses: Option<Vec<String>>,
    pub local_detection: Option<LocalDetection>,
    #[serde(default)]
    pub conntrack: Conntrack,
    pub metrics_bind_address: Option<String>,
    pub healthz_bind_address: Option<String>,
    pub pin_directory: Option<PathBuf>,
    pub socket_balancing: Option<SocketBalancing>,
    pub socket_exceptions: Option<Vec<String>>,
    pub reserve_node_ports: Option<bool>,
    pub interfaces: Option<Vec<String>>,
    pub masquerade: Option<Masquerade>,
    pub masquerade_ports: Option<Vec<String>>,
    #[serde(default)]
    pub maps: MapSizes,
    pub log_level: Option<String>,
    pub log_packets: Option<bool>,
}

/// KUBE: `conntrack`; how long flows may be idle.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Conntrack {
    pub tcp_established_timeout: Option<String>,
    pub tcp_close_wait_timeout: Option<String>,
    pub udp_timeout: Option<String>,
    pub udp_stream_timeout: Option<String>,
}

/// How many entries fit each map.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MapSizes {
    pub frontends: Option<u32>,
    pub records: Option<u32>,
    pub slots: Option<u32>,
    pub backends: Option<u32>,
    pub flows: Option<u32>,
    pub affinity: Option<u32>,
    pub sockets: Option<u32>,
    pub source_ranges: Option<u32>,
}

/// Why the settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read the configuration file {path}; check the path given to --config")]
    Unreadable {
        path: String,
        #[source]
        source: std::io::Error,
    },
    #[error("configuration file {path}, line {line}: {reason}; correct the file")]
    Malformed {
        path: String,
        line: u64,
        reason: String,
    },
    #[error("{key}: {value:?} {remedy}")]
    Invalid {
        key: &'static str,
        value: String,
        remedy: String,
    },
}

impl Source {
    /// Reads a configuration file.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let shown = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable {
            path: shown.clone(),
            source,
        })?;
        Self::parse(&shown, &text)
    }

    fn parse(path: &str, text: &str) -> Result<Self, ConfigError> {
        // An empty file says nothing; so does one of comments only.
        if text.lines().all(|line| {
            let line = line.trim();
            line.is_empty() || line.starts_with('#') || line == "---"
        }) {
            return Ok(Self::default());
        }
        let options = serde_saphyr::options! { with_snippet: false };
        serde_saphyr::from_str_with_options(text, options).map_err(|error| ConfigError::Malformed {
            path: path.to_owned(),
            line: error.location().map_or(1, |location| location.line()),
            reason: crate::watch::documents::describe(&error, text),
        })
    }

    /// What `self` says, else what `other` says.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            cluster_cidr: self.cluster_cidr.or(other.cluster_cidr),
            hostname_override: self.hostname_override.or(other.hostname_override),
            masquerade_all: self.masquerade_all.or(other.masquerade_all),
            node_port_addresses: self.node_port_addresses.or(other.node_port_addresses),
            local_detection: self.local_detection.or(other.local_detection),
            conntrack: other.conntrack,
            metrics_bind_address: self.metrics_bind_address.or(other.metrics_bind_address),
            healthz_bind_address: self.healthz_bind_address.or(other.healthz_bind_address),
            pin_directory: self.pin_directory.or(other.pin_directory),
            socket_balancing: self.socket_balancing.or(other.socket_balancing),
            socket_exceptions: self.socket_exceptions.or(other.socket_exceptions),
            reserve_node_ports: self.reserve_node_ports.or(other.reserve_node_ports),
            interfaces: self.interfaces.or(other.interfaces),
            masquerade: self.masquerade.or(other.masquerade),
            masquerade_ports: self.masquerade_ports.or(other.masquerade_ports),
            maps: other.maps,
            log_level: self.log_level.or(other.log_level),
            log_packets: self.log_packets.or(other.log_packets),
        }
    }

    /// The settings, checked, with defaults for what is not said.
    pub fn check(self) -> Result<Config, ConfigError> {
        let cluster_cidr = self.cluster_cidr.as_deref().unwrap_or_default();
        let cluster_cidr = ranges("clusterCIDR", cluster_cidr.split(','))?;
        for v4 in [true, false] {
            let of_family = cluster_cidr.iter().filter(|r| r.addr().is_ipv4() == v4);
            if of_family.count() > POD_RANGES {
                let all: Vec<_> = cluster_cidr.iter().map(ToString::to_string).collect();
                let remedy = format!(
                    "has more than {POD_RANGES} ranges of one family; merge some into a larger one"
                );
                return Err(invalid("clusterCIDR", &all.join(","), remedy));
            }
        }
        let local_detection = match self.local_detection {
            Some(LocalDetection::ClusterCidr) if cluster_cidr.is_empty() => {
                let remedy = "needs clusterCIDR to be set; set it or use none";
                return Err(invalid("localDetection", "clusterCIDR", remedy));
            }
            Some(chosen) => chosen,
            None if cluster_cidr.is_empty() => LocalDetection::None,
            None => LocalDetection::ClusterCidr,
        };
        Ok(Config {
            cluster_cidr,
            hostname_override: self.hostname_override,
            masquerade_all: self.masquerade_all.unwrap_or_default(),
            node_port_addresses: node_port_addresses(
                &self.node_port_addresses.unwrap_or_default(),
            )?,
            local_detection,
            idle_times: idle_times(&self.conntrack)?,
            metrics_bind_address: bind_address(
                "metricsBindAddress",
                self.metrics_bind_address.as_deref(),
                "127.0.0.1:10249",
            )?,
            healthz_bind_address: bind_address(
                "healthzBindAddress",
                self.healthz_bind_address.as_deref(),
                "0.0.0.0:10256",
            )?,
            pin_directory: self.pin_directory.unwrap_or_else(|| DEFAULT_PIN_DIR.into()),
            socket_balancing: self.socket_balancing.unwrap_or_default(),
            socket_exceptions: self.socket_exceptions.unwrap_or_default(),
            reserve_node_ports: self.reserve_node_ports.unwrap_or_default(),
            interfaces: self.interfaces.unwrap_or_default(),
            masquerade: self.masquerade.unwrap_or_default(),
            masquerade_ports: masquerade_ports(self.masquerade_ports.as_deref())?,
            capacities: capacities(&self.maps)?,
            log_level: self.log_level.unwrap_or_else(|| "info".to_owned()),
            log_packets: self.log_packets.unwrap_or_default(),
            node_ips: Vec::new(),
            cgroup_root: None,
        })
    }
}

impl Config {
    /// What the kernel programs need to know, but for the node's addresses.
    pub fn settings(&self) -> Settings {
        let mut settings = Settings {
            masquerade_ports: self.masquerade_ports,
            ..Settings::EMPTY
        };
        if self.masquerade_all {
            settings.flags |= Settings::MASQUERADE_ALL;
        }
        if self.masquerade == Masquerade::Mark {
            settings.flags |= Settings::MARK_ONLY;
        }
        if self.socket_balancing == SocketBalancing::All {
            settings.flags |= Settings::POD_SOCKETS;
        }
        if !self.socket_exceptions.is_empty() {
            settings.flags |= Settings::SOCKET_EXCEPTIONS;
        }
        if self.reserve_node_ports {
            settings.flags |= Settings::RESERVE_NODE_PORTS;
        }
        if self.local_detection == LocalDetection::ClusterCidr {
            settings.flags |= Settings::DETECTS_PODS;
            let v4 = self.cluster_cidr.iter().filter_map(|range| match range {
                IpNet::V4(range) => Some(Prefix::<V4> {
                    address: range.network().into(),
                    mask: range.netmask().into(),
                }),
                IpNet::V6(_) => None,
            });
            let v6 = self.cluster_cidr.iter().filter_map(|range| match range {
                IpNet::V6(range) => Some(Prefix::<V6> {
                    address: range.network().into(),
                    mask: range.netmask().into(),
                }),
                IpNet::V4(_) => None,
            });
            settings
                .pods_v4
                .iter_mut()
                .zip(v4)
                .for_each(|(to, from)| *to = from);
            settings
                .pods_v6
                .iter_mut()
                .zip(v6)
                .for_each(|(to, from)| *to = from);
        }
        settings
    }
}
