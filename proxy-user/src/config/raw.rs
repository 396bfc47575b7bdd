// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the file and the flags say, not checked yet; flags override the file. Filled by `file` and
//! `cli::run`, made into a `Config` by `check`.

use std::path::PathBuf;

use proxy_common::settings::RANGES;
use serde::{Deserialize, Serialize};

use super::{
    Config, ConfigError, Forwarding, Masquerade, SocketBalancing, UnallocatedClusterIps,
    values::{
        bind_address, capacities, idle_times, invalid, local_detection, marks, masquerade_ports,
        mode_defaults, node_port_addresses, ranges,
    },
};
use crate::datapath::DEFAULT_PIN_DIR;

/// What can be said in the file, and by flags; nothing said means the default.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct RawConfig {
    /// KUBE: kube-proxy's way to work; modes differ in some defaults.
    pub mode: Option<String>,
    pub cluster_cidr: Option<String>,
    pub hostname_override: Option<String>,
    pub masquerade_all: Option<bool>,
    pub masquerade_bits: MasqueradeBits,
    pub node_port_addresses: Option<Vec<String>>,
    pub detect_local_mode: Option<String>,
    /// For the mode BridgeInterface.
    pub pod_bridge_interface: Option<String>,
    /// For the mode InterfaceNamePrefix.
    pub pod_interface_name_prefix: Option<String>,
    pub conntrack: Conntrack,
    pub metrics_bind_address: Option<String>,
    pub healthz_bind_address: Option<String>,
    pub pin_directory: Option<PathBuf>,
    pub socket_balancing: Option<SocketBalancing>,
    pub socket_exceptions: Option<Vec<String>>,
    pub reserve_node_ports: Option<bool>,
    pub unallocated_cluster_ips: Option<UnallocatedClusterIps>,
    pub interfaces: Option<Vec<String>>,
    pub masquerade: Option<Masquerade>,
    pub forwarding: Option<Forwarding>,
    pub masquerade_ports: Option<Vec<String>>,
    pub maps: MapSizes,
    pub log_level: Option<String>,
    pub log_packets: Option<bool>,
    pub per_service_metrics: Option<bool>,
    pub kubeconfig: Option<PathBuf>,
    /// What was said that means nothing here, by name.
    pub unused: Vec<String>,
}

/// KUBE: `conntrack`; how long flows may be idle.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Conntrack {
    pub tcp_established_timeout: Option<String>,
    pub tcp_close_wait_timeout: Option<String>,
    pub udp_timeout: Option<String>,
    pub udp_stream_timeout: Option<String>,
}

/// KUBE: `masqueradeBit`, which kube-proxy has once for each of its modes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MasqueradeBits {
    pub iptables: Option<i64>,
    pub nftables: Option<i64>,
}

impl MasqueradeBits {
    fn or(self, other: Self) -> Self {
        Self {
            iptables: self.iptables.or(other.iptables),
            nftables: self.nftables.or(other.nftables),
        }
    }
}

/// How many entries fit each map.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
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

impl RawConfig {
    /// What `self` says, else what `other` says.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            mode: self.mode.or(other.mode),
            cluster_cidr: self.cluster_cidr.or(other.cluster_cidr),
            hostname_override: self.hostname_override.or(other.hostname_override),
            masquerade_all: self.masquerade_all.or(other.masquerade_all),
            masquerade_bits: self.masquerade_bits.or(other.masquerade_bits),
            node_port_addresses: self.node_port_addresses.or(other.node_port_addresses),
            detect_local_mode: self.detect_local_mode.or(other.detect_local_mode),
            pod_bridge_interface: self.pod_bridge_interface.or(other.pod_bridge_interface),
            pod_interface_name_prefix: self
                .pod_interface_name_prefix
                .or(other.pod_interface_name_prefix),
            conntrack: self.conntrack.or(other.conntrack),
            metrics_bind_address: self.metrics_bind_address.or(other.metrics_bind_address),
            healthz_bind_address: self.healthz_bind_address.or(other.healthz_bind_address),
            pin_directory: self.pin_directory.or(other.pin_directory),
            socket_balancing: self.socket_balancing.or(other.socket_balancing),
            socket_exceptions: self.socket_exceptions.or(other.socket_exceptions),
            reserve_node_ports: self.reserve_node_ports.or(other.reserve_node_ports),
            unallocated_cluster_ips: self
                .unallocated_cluster_ips
                .or(other.unallocated_cluster_ips),
            interfaces: self.interfaces.or(other.interfaces),
            masquerade: self.masquerade.or(other.masquerade),
            forwarding: self.forwarding.or(other.forwarding),
            masquerade_ports: self.masquerade_ports.or(other.masquerade_ports),
            maps: other.maps,
            log_level: self.log_level.or(other.log_level),
            log_packets: self.log_packets.or(other.log_packets),
            per_service_metrics: self.per_service_metrics.or(other.per_service_metrics),
            kubeconfig: self.kubeconfig.or(other.kubeconfig),
            unused: [self.unused, other.unused].concat(),
        }
    }

    /// The settings, checked, with defaults for what is not said.
    pub fn check(self) -> Result<Config, ConfigError> {
        let cluster_cidr = self.cluster_cidr.as_deref().unwrap_or_default();
        let cluster_cidr = ranges("clusterCIDR", cluster_cidr.split(','))?;
        for v4 in [true, false] {
            let of_family = cluster_cidr.iter().filter(|r| r.addr().is_ipv4() == v4);
            if of_family.count() > RANGES {
                let all: Vec<_> = cluster_cidr.iter().map(ToString::to_string).collect();
                let remedy = format!(
                    "has more than {RANGES} ranges of one family; merge some into a larger one"
                );
                return Err(invalid("clusterCIDR", &all.join(","), remedy));
            }
        }
        let defaults = mode_defaults(self.mode.as_deref().unwrap_or_default())?;
        let local_detection = local_detection(&self, !cluster_cidr.is_empty())?;
        Ok(Config {
            cluster_cidr,
            hostname_override: self.hostname_override,
            masquerade_all: self.masquerade_all.unwrap_or_default(),
            node_port_addresses: node_port_addresses(
                &self.node_port_addresses.unwrap_or_default(),
                defaults.node_port_addresses,
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
            unallocated_cluster_ips: self
                .unallocated_cluster_ips
                .unwrap_or(defaults.unallocated_cluster_ips),
            interfaces: self.interfaces.unwrap_or_default(),
            masquerade: self.masquerade.unwrap_or_default(),
            forwarding: self.forwarding.unwrap_or_default(),
            masquerade_ports: masquerade_ports(self.masquerade_ports.as_deref())?,
            marks: marks(self.mode.as_deref(), self.masquerade_bits)?,
            capacities: capacities(&self.maps)?,
            log_level: self.log_level.unwrap_or_else(|| "info".to_owned()),
            log_packets: self.log_packets.unwrap_or_default(),
            per_service_metrics: self.per_service_metrics.unwrap_or_default(),
            kubeconfig: self.kubeconfig,
            unused: self.unused,
            node_ips: Vec::new(),
            cgroup_root: None,
        })
    }
}

impl Conntrack {
    fn or(self, other: Self) -> Self {
        Self {
            tcp_established_timeout: self
                .tcp_established_timeout
                .or(other.tcp_established_timeout),
            tcp_close_wait_timeout: self.tcp_close_wait_timeout.or(other.tcp_close_wait_timeout),
            udp_timeout: self.udp_timeout.or(other.udp_timeout),
            udp_stream_timeout: self.udp_stream_timeout.or(other.udp_stream_timeout),
        }
    }
}
