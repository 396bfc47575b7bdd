// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Settings under kube-proxy's names: from a file, overridden by flags, validated. Built by `cli::run`,
//! used by `agent`.

mod file;
mod raw;
#[cfg(test)]
mod tests;
mod values;

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use ipnet::IpNet;
use proxy_common::{
    Prefix, Settings, V4, V6,
    flow::IdleTimes,
    masquerade::{Marks, PortRanges},
    settings::RANGES,
};
use serde::{Deserialize, Serialize};

use crate::{
    datapath::Capacities,
    interfaces::{Patterns, PodInterfaces},
};

pub use file::render;
pub use raw::{Conntrack, MapSizes, MasqueradeBits, RawConfig};
pub use values::duration;

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
    pub unallocated_cluster_ips: UnallocatedClusterIps,
    /// Globs over interface names that replace detection; empty means detection.
    pub interfaces: Vec<String>,
    pub masquerade: Masquerade,
    pub forwarding: Forwarding,
    pub masquerade_ports: PortRanges,
    /// KUBE: `masqueradeBit`, and the bit of what is dropped.
    pub marks: Marks,
    pub capacities: Capacities,
    pub log_level: String,
    /// The kernel programs log every packet of a service.
    pub log_packets: bool,
    /// Metrics with one line per service.
    pub per_service_metrics: bool,
    /// Credentials and address of the API server.
    pub kubeconfig: Option<PathBuf>,
    /// Settings of kube-proxy's that mean nothing here, by name.
    pub unused: Vec<String>,
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

/// How pods are told from other clients. KUBE: `detectLocalMode`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LocalDetection {
    /// They have an address in the cluster's pod ranges.
    ClusterCidr,
    /// They have an address in the pod ranges of this node's object: other nodes' pods are other clients.
    NodeCidr,
    /// Their packets come by one of these interfaces.
    Interface(PodInterfaces),
    None,
}

/// Whose connections are translated at the socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum SocketBalancing {
    /// Node processes' and pods'.
    #[default]
    All,
    /// Node processes' only.
    Host,
}

/// What becomes of what is sent to an address that cluster IPs are allocated from and no service has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum UnallocatedClusterIps {
    /// It goes where the node's routes send it. KUBE: mode iptables.
    #[default]
    Pass,
    /// KUBE: mode nftables.
    Drop,
}

/// Who replaces the source address of flows that need it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Masquerade {
    #[default]
    Full,
    /// The node's own rules, which find the mark on the packet.
    Mark,
}

/// How translated packets leave the node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Forwarding {
    /// By the node's stack, whose filters apply.
    #[default]
    Stack,
    /// At once, by the kernel's routes and neighbours, past the stack and its filters.
    Redirect,
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
        match &self.local_detection {
            LocalDetection::ClusterCidr => set_pods(&mut settings, &self.cluster_cidr),
            // The node's object may come later.
            LocalDetection::NodeCidr => set_pods(&mut settings, &[]),
            LocalDetection::Interface(_) => {
                settings.flags |= Settings::DETECTS_PODS | Settings::PODS_BY_INTERFACE;
            }
            LocalDetection::None => {}
        }
        settings
    }
    /// What interfaces are told by.
    pub fn interface_patterns(&self) -> Patterns {
        Patterns {
            attach: self.interfaces.clone(),
            pods: match &self.local_detection {
                LocalDetection::Interface(pods) => Some(pods.clone()),
                _ => None,
            },
        }
    }
}

/// Has pods told from other clients by these ranges, of which as many of a family count as the settings have room for.
pub fn set_pods(settings: &mut Settings, ranges: &[IpNet]) {
    settings.flags |= Settings::DETECTS_PODS;
    fill(&mut settings.pods_v4, &mut settings.pods_v6, ranges);
}

/// Has what is sent to addresses in these ranges dropped where no service has them; as many count as in [`set_pods`].
pub fn set_allocated(settings: &mut Settings, ranges: &[IpNet]) {
    fill(
        &mut settings.allocated_v4,
        &mut settings.allocated_v6,
        ranges,
    );
}

fn fill(all_v4: &mut [Prefix<V4>; RANGES], all_v6: &mut [Prefix<V6>; RANGES], ranges: &[IpNet]) {
    let v4 = ranges.iter().filter_map(|range| match range {
        IpNet::V4(range) => Some(Prefix::<V4> {
            address: range.network().into(),
            mask: range.netmask().into(),
        }),
        IpNet::V6(_) => None,
    });
    let v6 = ranges.iter().filter_map(|range| match range {
        IpNet::V6(range) => Some(Prefix::<V6> {
            address: range.network().into(),
            mask: range.netmask().into(),
        }),
        IpNet::V4(_) => None,
    });
    all_v4.iter_mut().zip(v4).for_each(|(to, from)| *to = from);
    all_v6.iter_mut().zip(v6).for_each(|(to, from)| *to = from);
}
