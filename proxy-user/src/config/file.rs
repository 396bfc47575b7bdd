// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The configuration file: kube-proxy's, `KubeProxyConfiguration` of v1alpha1, and our own settings in its
//! section `portolan`. Reading and writing; what the values mean is `raw`'s.

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    Config, ConfigError, Conntrack, Forwarding, LocalDetection, MapSizes, Masquerade,
    MasqueradeBits, NodePortAddresses, RawConfig, SocketBalancing, UnallocatedClusterIps,
};
use crate::interfaces::PodInterfaces;

const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
const KIND: &str = "KubeProxyConfiguration";

/// A setting of kube-proxy's that means nothing here.
type Unused = Option<Value>;

macro_rules! sections {
    ($($(#[$attribute:meta])* $section:ident { $($used:tt)* } unused { $($unused:ident,)* })*) => {
        $(
            $(#[$attribute])*
            #[derive(Debug, Default, Deserialize, Serialize)]
            #[serde(rename_all = "camelCase", deny_unknown_fields, default)]
            struct $section {
                $($used)*
                $(#[serde(skip_serializing)] $unused: Unused,)*
            }

            impl $section {
                /// Those without a meaning that are set to something.
                fn unused(&self) -> Vec<&'static str> {
                    let mut names = Vec::new();
                    $(if is_set(self.$unused.as_ref()) {
                        names.push(stringify!($unused));
                    })*
                    names
                }
            }
        )*
    };
}

sections! {
    /// The whole file.
    File {
        api_version: Option<String>,
        kind: Option<String>,
        mode: Option<String>,
        hostname_override: Option<String>,
        #[serde(rename = "clusterCIDR")]
        cluster_cidr: Option<String>,
        detect_local_mode: Option<String>,
        detect_local: Option<DetectLocal>,
        node_port_addresses: Option<Vec<String>>,
        healthz_bind_address: Option<String>,
        metrics_bind_address: Option<String>,
        client_connection: Option<ClientConnection>,
        conntrack: Option<ConntrackSection>,
        iptables: Option<Rules>,
        nftables: Option<Rules>,
        portolan: Option<Portolan>,
    }
    unused {
        bind_address, bind_address_hard_fail, config_sync_period, enable_profiling, feature_gates,
        ipvs, logging, oom_score_adj, port_range, show_hidden_metrics_for_version, winkernel,
        windows_run_as_service,
    }

    ClientConnection {
        kubeconfig: Option<PathBuf>,
    }
    unused { accept_content_types, content_type, qps, burst, }

    ConntrackSection {
        tcp_established_timeout: Option<String>,
        tcp_close_wait_timeout: Option<String>,
        udp_timeout: Option<String>,
        udp_stream_timeout: Option<String>,
    }
    unused { max_per_core, min, tcp_be_liberal, }

    /// What its modes of rules have in common.
    Rules {
        masquerade_all: Option<bool>,
        masquerade_bit: Option<i64>,
    }
    unused { localhost_node_ports, sync_period, min_sync_period, }
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct DetectLocal {
    #[serde(rename = "clusterCIDRs")]
    cluster_cidrs: Option<Vec<String>>,
    bridge_interface: Option<String>,
    interface_name_prefix: Option<String>,
}

/// Our own settings.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Portolan {
    pin_directory: Option<PathBuf>,
    socket_balancing: Option<SocketBalancing>,
    socket_exceptions: Option<Vec<String>>,
    reserve_node_ports: Option<bool>,
    #[serde(rename = "unallocatedClusterIPs")]
    unallocated_cluster_ips: Option<UnallocatedClusterIps>,
    interfaces: Option<Vec<String>>,
    masquerade: Option<Masquerade>,
    forwarding: Option<Forwarding>,
    masquerade_ports: Option<Vec<String>>,
    maps: Option<MapSizes>,
    log_level: Option<String>,
    log_packets: Option<bool>,
    per_service_metrics: Option<bool>,
}

/// Files that others write name everything, mostly with what means nothing said.
fn is_set(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null | Value::Bool(false)) => false,
        Some(Value::Number(number)) => number.as_f64() != Some(0.0),
        Some(Value::String(text)) => !matches!(text.as_str(), "" | "0" | "0s" | "0.0.0.0" | "::"),
        Some(Value::Array(items)) => items.iter().any(|item| is_set(Some(item))),
        Some(Value::Object(fields)) => fields.values().any(|field| is_set(Some(field))),
        Some(Value::Bool(true)) => true,
    }
}

/// As the file spells a name.
fn camel_case(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |mut all, word| {
        let mut letters = word.chars();
        all.extend(letters.next().map(|letter| letter.to_ascii_uppercase()));
        all.push_str(letters.as_str());
        all
    })
}

/// An empty text is nothing said: kube-proxy's own files are full of them.
fn said(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

impl RawConfig {
    /// Reads a configuration file.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let shown = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable {
            path: shown.clone(),
            source,
        })?;
        Self::parse(&shown, &text)
    }

    pub(super) fn parse(path: &str, text: &str) -> Result<Self, ConfigError> {
        // An empty file says nothing; so does one of comments only.
        if text.lines().all(|line| {
            let line = line.trim();
            line.is_empty() || line.starts_with('#') || line == "---"
        }) {
            return Ok(Self::default());
        }
        let malformed = |line, reason| ConfigError::Malformed {
            path: path.to_owned(),
            line,
            reason,
        };
        let options = serde_saphyr::options! { with_snippet: false };
        let file: File = serde_saphyr::from_str_with_options(text, options).map_err(|error| {
            let line = error.location().map_or(1, |location| location.line());
            malformed(
                line,
                with_nearest(&crate::watch::documents::describe(&error, text)),
            )
        })?;
        for (key, said, expected) in [
            ("apiVersion", &file.api_version, API_VERSION),
            ("kind", &file.kind, KIND),
        ] {
            if said.as_deref().is_some_and(|said| said != expected) {
                let said = said.as_deref().unwrap_or_default();
                return Err(malformed(
                    1,
                    format!("{key} is {said:?} where {expected} is wanted"),
                ));
            }
        }
        Ok(file.into_source())
    }
}

impl File {
    fn into_source(self) -> RawConfig {
        let mut unused: Vec<_> = self.unused().into_iter().map(camel_case).collect();
        let mut below = |section: &str, names: Vec<&str>| {
            unused.extend(
                names
                    .into_iter()
                    .map(|name| format!("{section}.{}", camel_case(name))),
            );
        };
        let client = self.client_connection.unwrap_or_default();
        below("clientConnection", client.unused());
        let conntrack = self.conntrack.unwrap_or_default();
        below("conntrack", conntrack.unused());
        let iptables = self.iptables.unwrap_or_default();
        below("iptables", iptables.unused());
        let nftables = self.nftables.unwrap_or_default();
        below("nftables", nftables.unused());
        let local = self.detect_local.unwrap_or_default();
        let cluster_cidrs = local.cluster_cidrs.filter(|ranges| !ranges.is_empty());
        let own = self.portolan.unwrap_or_default();
        RawConfig {
            mode: said(self.mode),
            cluster_cidr: cluster_cidrs
                .map(|ranges| ranges.join(","))
                .or(said(self.cluster_cidr)),
            hostname_override: said(self.hostname_override),
            // Whichever mode it was written for.
            masquerade_all: iptables.masquerade_all.max(nftables.masquerade_all),
            masquerade_bits: MasqueradeBits {
                iptables: iptables.masquerade_bit,
                nftables: nftables.masquerade_bit,
            },
            node_port_addresses: self.node_port_addresses,
            detect_local_mode: said(self.detect_local_mode),
            pod_bridge_interface: said(local.bridge_interface),
            pod_interface_name_prefix: said(local.interface_name_prefix),
            conntrack: Conntrack {
                tcp_established_timeout: conntrack.tcp_established_timeout,
                tcp_close_wait_timeout: conntrack.tcp_close_wait_timeout,
                udp_timeout: conntrack.udp_timeout,
                udp_stream_timeout: conntrack.udp_stream_timeout,
            },
            metrics_bind_address: said(self.metrics_bind_address),
            healthz_bind_address: said(self.healthz_bind_address),
            pin_directory: own.pin_directory,
            socket_balancing: own.socket_balancing,
            socket_exceptions: own.socket_exceptions,
            reserve_node_ports: own.reserve_node_ports,
            unallocated_cluster_ips: own.unallocated_cluster_ips,
            interfaces: own.interfaces,
            masquerade: own.masquerade,
            forwarding: own.forwarding,
            masquerade_ports: own.masquerade_ports,
            maps: own.maps.unwrap_or_default(),
            log_level: own.log_level,
            log_packets: own.log_packets,
            per_service_metrics: own.per_service_metrics,
            kubeconfig: client
                .kubeconfig
                .filter(|path| !path.as_os_str().is_empty()),
            unused,
        }
    }
}

/// Names the key that an unknown one was most likely meant to be, instead of all there are.
fn with_nearest(reason: &str) -> String {
    let Some((unknown, known)) = reason
        .strip_prefix("unknown field `")
        .and_then(|rest| rest.split_once('`'))
    else {
        return reason.to_owned();
    };
    let distance =
        |name: &&str| strsim::damerau_levenshtein(&name.to_lowercase(), &unknown.to_lowercase());
    let known = known.split_once(" in `").map_or(known, |(known, _)| known);
    let names = known
        .split([',', ' '])
        .filter(|word| !matches!(*word, "" | "expected" | "one" | "of" | "or"));
    let nearest = names.min_by_key(distance);
    match nearest {
        Some(nearest) => format!("unknown key {unknown:?}; the nearest one is {nearest:?}"),
        None => format!("unknown key {unknown:?}"),
    }
}

/// The settings as a file says them, defaults included.
pub fn render(config: &Config) -> anyhow::Result<String> {
    let ranges: Vec<_> = config
        .cluster_cidr
        .iter()
        .map(ToString::to_string)
        .collect();
    let seconds = |seconds: u32| Some(format!("{seconds}s"));
    let times = config.idle_times;
    let [a, b, c, d] = config.masquerade_ports.0;
    let ports = [(a, b), (c, d)];
    let sizes = config.capacities;
    let (detect_local_mode, detect_local) = match &config.local_detection {
        LocalDetection::ClusterCidr => (Some("ClusterCIDR"), None),
        LocalDetection::NodeCidr => (Some("NodeCIDR"), None),
        LocalDetection::Interface(PodInterfaces::Named(name)) => {
            let local = DetectLocal {
                bridge_interface: Some(name.clone()),
                ..DetectLocal::default()
            };
            (Some("BridgeInterface"), Some(local))
        }
        LocalDetection::Interface(PodInterfaces::Prefix(prefix)) => {
            let local = DetectLocal {
                interface_name_prefix: Some(prefix.clone()),
                ..DetectLocal::default()
            };
            (Some("InterfaceNamePrefix"), Some(local))
        }
        LocalDetection::None => (None, None),
    };
    let rules = || Rules {
        masquerade_bit: Some(config.marks.masquerade.trailing_zeros().into()),
        ..Rules::default()
    };
    let file = File {
        api_version: Some(API_VERSION.to_owned()),
        kind: Some(KIND.to_owned()),
        hostname_override: config.hostname_override.clone(),
        cluster_cidr: (!ranges.is_empty()).then(|| ranges.join(",")),
        detect_local_mode: detect_local_mode.map(str::to_owned),
        detect_local,
        node_port_addresses: Some(match &config.node_port_addresses {
            NodePortAddresses::Every => Vec::new(),
            NodePortAddresses::Primary => vec!["primary".to_owned()],
            NodePortAddresses::Within(ranges) => ranges.iter().map(ToString::to_string).collect(),
        }),
        healthz_bind_address: Some(config.healthz_bind_address.to_string()),
        metrics_bind_address: Some(config.metrics_bind_address.to_string()),
        client_connection: config
            .kubeconfig
            .clone()
            .map(|kubeconfig| ClientConnection {
                kubeconfig: Some(kubeconfig),
                ..ClientConnection::default()
            }),
        conntrack: Some(ConntrackSection {
            tcp_established_timeout: seconds(times.tcp_established),
            tcp_close_wait_timeout: seconds(times.tcp_close_wait),
            udp_timeout: seconds(times.udp),
            udp_stream_timeout: seconds(times.udp_stream),
            ..ConntrackSection::default()
        }),
        nftables: Some(Rules {
            masquerade_all: Some(config.masquerade_all),
            ..rules()
        }),
        iptables: Some(rules()),
        portolan: Some(Portolan {
            pin_directory: Some(config.pin_directory.clone()),
            socket_balancing: Some(config.socket_balancing),
            socket_exceptions: Some(config.socket_exceptions.clone()),
            reserve_node_ports: Some(config.reserve_node_ports),
            unallocated_cluster_ips: Some(config.unallocated_cluster_ips),
            interfaces: Some(config.interfaces.clone()),
            masquerade: Some(config.masquerade),
            forwarding: Some(config.forwarding),
            masquerade_ports: Some(
                ports
                    .iter()
                    .filter(|(first, _)| *first != 0)
                    .map(|(first, last)| format!("{first}-{last}"))
                    .collect(),
            ),
            maps: Some(MapSizes {
                frontends: Some(sizes.frontends),
                records: Some(sizes.records),
                slots: Some(sizes.slots),
                backends: Some(sizes.backends),
                flows: Some(sizes.flows),
                affinity: Some(sizes.affinity),
                sockets: Some(sizes.sockets),
                source_ranges: Some(sizes.source_ranges),
            }),
            log_level: Some(config.log_level.clone()),
            log_packets: Some(config.log_packets),
            per_service_metrics: Some(config.per_service_metrics),
        }),
        ..File::default()
    };
    let mut file = serde_json::to_value(&file).context("write the settings")?;
    remove_nulls(&mut file);
    serde_saphyr::to_string(&file).context("write the settings")
}

fn remove_nulls(value: &mut Value) {
    if let Value::Object(fields) = value {
        fields.retain(|_, field| !field.is_null());
        fields.values_mut().for_each(remove_nulls);
    }
}
