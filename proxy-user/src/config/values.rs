// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From the texts of settings to values, each error naming key, value and remedy. Used by `config`.

use std::{net::SocketAddr, time::Duration};

use ipnet::IpNet;
use proxy_common::{
    flow::IdleTimes,
    masquerade::{Marks, PortRanges},
};

use super::{
    ConfigError, Conntrack, LocalDetection, MapSizes, MasqueradeBits, NodePortAddresses, RawConfig,
    UnallocatedClusterIps,
};
use crate::{datapath::Capacities, interfaces::PodInterfaces, model::parse};

pub(super) fn invalid(key: &'static str, value: &str, remedy: impl Into<String>) -> ConfigError {
    ConfigError::Invalid {
        key,
        value: value.to_owned(),
        remedy: remedy.into(),
    }
}

pub(super) fn ranges<'a>(
    key: &'static str,
    texts: impl Iterator<Item = &'a str>,
) -> Result<Vec<IpNet>, ConfigError> {
    texts
        .map(str::trim)
        .filter(|text| !text.is_empty())
        .map(|text| {
            parse::range(text).ok_or_else(|| {
                invalid(
                    key,
                    text,
                    "is not an address range; write it like 10.244.0.0/16",
                )
            })
        })
        .collect()
}

/// KUBE: where nothing is said, by the cluster's ranges if these are known.
pub(super) fn local_detection(
    source: &RawConfig,
    has_ranges: bool,
) -> Result<LocalDetection, ConfigError> {
    const KEY: &str = "detectLocalMode";
    let mode = source.detect_local_mode.as_deref().unwrap_or_default();
    let needs = |key: &str| {
        let remedy = format!("needs {key} to be set; set it or use another mode");
        invalid(KEY, mode, remedy)
    };
    match mode {
        "ClusterCIDR" if !has_ranges => Err(needs("clusterCIDR")),
        "" if !has_ranges => Ok(LocalDetection::None),
        "" | "ClusterCIDR" => Ok(LocalDetection::ClusterCidr),
        "NodeCIDR" => Ok(LocalDetection::NodeCidr),
        "BridgeInterface" => match source.pod_bridge_interface.clone() {
            Some(name) => Ok(LocalDetection::Interface(PodInterfaces::Named(name))),
            None => Err(needs("detectLocal.bridgeInterface")),
        },
        "InterfaceNamePrefix" => match source.pod_interface_name_prefix.clone() {
            Some(prefix) => Ok(LocalDetection::Interface(PodInterfaces::Prefix(prefix))),
            None => Err(needs("detectLocal.interfaceNamePrefix")),
        },
        _ => Err(invalid(
            KEY,
            mode,
            "is no mode; use ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix",
        )),
    }
}

/// KUBE: each of kube-proxy's modes has a bit of its own; where no mode is said, iptables' holds, else nftables'.
pub(super) fn marks(mode: Option<&str>, bits: MasqueradeBits) -> Result<Marks, ConfigError> {
    const IPTABLES: &str = "iptables.masqueradeBit";
    const NFTABLES: &str = "nftables.masqueradeBit";
    let (key, bit) = match (mode, bits.iptables, bits.nftables) {
        (Some("nftables"), _, bit) | (None, None, bit) => (NFTABLES, bit),
        (_, bit, _) => (IPTABLES, bit),
    };
    let Some(bit) = bit else {
        return Ok(Marks::DEFAULT);
    };
    let marks = u32::try_from(bit).ok().and_then(Marks::with_masquerade_bit);
    marks.ok_or_else(|| {
        let remedy = "is no bit of a packet's mark; use one from 0 to 31, best 14";
        invalid(key, &bit.to_string(), remedy)
    })
}

/// What kube-proxy's modes differ in and an operator can see.
pub(super) struct ModeDefaults {
    pub(super) node_port_addresses: NodePortAddresses,
    pub(super) unallocated_cluster_ips: UnallocatedClusterIps,
}

/// KUBE: a cluster that is used to mode nftables has node ports on the primary addresses only, and what is
/// sent to a cluster IP that no service has is dropped.
pub(super) fn mode_defaults(mode: &str) -> Result<ModeDefaults, ConfigError> {
    match mode {
        "" | "iptables" | "ipvs" => Ok(ModeDefaults {
            node_port_addresses: NodePortAddresses::Every,
            unallocated_cluster_ips: UnallocatedClusterIps::Pass,
        }),
        "nftables" => Ok(ModeDefaults {
            node_port_addresses: NodePortAddresses::Primary,
            unallocated_cluster_ips: UnallocatedClusterIps::Drop,
        }),
        _ => Err(invalid(
            "mode",
            mode,
            "is no mode; leave it out, or use iptables or nftables for what differs in them",
        )),
    }
}

pub(super) fn node_port_addresses(
    texts: &[String],
    default: NodePortAddresses,
) -> Result<NodePortAddresses, ConfigError> {
    match texts {
        [] => Ok(default),
        [only] if only == "primary" => Ok(NodePortAddresses::Primary),
        texts if texts.iter().any(|text| text == "primary") => Err(invalid(
            "nodePortAddresses",
            &texts.join(","),
            "mixes primary with ranges; use primary alone or ranges alone",
        )),
        texts => {
            let ranges = ranges("nodePortAddresses", texts.iter().map(String::as_str))?;
            Ok(NodePortAddresses::Within(ranges))
        }
    }
}

pub(super) fn bind_address(
    key: &'static str,
    text: Option<&str>,
    default: &str,
) -> Result<SocketAddr, ConfigError> {
    let text = text.unwrap_or(default);
    text.parse().map_err(|_| {
        let remedy = format!("is not an address and port; write it like {default}");
        invalid(key, text, remedy)
    })
}

pub(super) fn idle_times(conntrack: &Conntrack) -> Result<IdleTimes, ConfigError> {
    let mut times = IdleTimes::DEFAULT;
    let settings = [
        (
            "conntrack.tcpEstablishedTimeout",
            &conntrack.tcp_established_timeout,
            &mut times.tcp_established,
        ),
        (
            "conntrack.tcpCloseWaitTimeout",
            &conntrack.tcp_close_wait_timeout,
            &mut times.tcp_close_wait,
        ),
        (
            "conntrack.udpTimeout",
            &conntrack.udp_timeout,
            &mut times.udp,
        ),
        (
            "conntrack.udpStreamTimeout",
            &conntrack.udp_stream_timeout,
            &mut times.udp_stream,
        ),
    ];
    for (key, text, time) in settings {
        let Some(text) = text else { continue };
        let duration = duration(text).ok_or_else(|| {
            invalid(
                key,
                text,
                "is not a duration; write it like 24h0m0s or 120s, or 0 for the default",
            )
        })?;
        match u32::try_from(duration.as_secs()) {
            // KUBE: zero leaves things as they are.
            Ok(0) if duration.is_zero() => {}
            Ok(seconds @ 1..) => *time = seconds,
            _ => {
                return Err(invalid(
                    key,
                    text,
                    "is not between 1s and 136 years; correct it",
                ));
            }
        }
    }
    Ok(times)
}

/// Go's way to write durations: `1h30m`, `1.5s`, `300ms`, `0`.
pub fn duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at_checked(digits)?;
        let letters = tail
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at_checked(letters)?;
        let seconds = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        let number: f64 = number.parse().ok()?;
        total = total.checked_add(Duration::try_from_secs_f64(number * seconds).ok()?)?;
        rest = tail;
    }
    (!text.is_empty()).then_some(total)
}

pub(super) fn masquerade_ports(texts: Option<&[String]>) -> Result<PortRanges, ConfigError> {
    const KEY: &str = "portolan.masqueradePorts";
    let Some(texts) = texts else {
        return Ok(PortRanges::DEFAULT);
    };
    let mut ranges = [0; 4];
    if texts.is_empty() || texts.len() > 2 {
        let remedy = "is not one or two ranges; write it like [1024-29999, 61000-65535]";
        return Err(invalid(KEY, &texts.join(","), remedy));
    }
    for (to, text) in ranges.chunks_exact_mut(2).zip(texts) {
        let parsed = text.split_once('-').and_then(|(from, until)| {
            let range = [from.trim().parse().ok()?, until.trim().parse().ok()?];
            (range[0] > 0 && range[0] <= range[1]).then_some(range)
        });
        let Some(range) = parsed else {
            let remedy = "is not a range of ports; write it like 1024-29999";
            return Err(invalid(KEY, text, remedy));
        };
        to.copy_from_slice(&range);
    }
    Ok(PortRanges(ranges))
}

pub(super) fn capacities(maps: &MapSizes) -> Result<Capacities, ConfigError> {
    let mut capacities = Capacities::default();
    let settings = [
        (
            "portolan.maps.frontends",
            maps.frontends,
            &mut capacities.frontends,
        ),
        (
            "portolan.maps.records",
            maps.records,
            &mut capacities.records,
        ),
        ("portolan.maps.slots", maps.slots, &mut capacities.slots),
        (
            "portolan.maps.backends",
            maps.backends,
            &mut capacities.backends,
        ),
        ("portolan.maps.flows", maps.flows, &mut capacities.flows),
        (
            "portolan.maps.affinity",
            maps.affinity,
            &mut capacities.affinity,
        ),
        (
            "portolan.maps.sockets",
            maps.sockets,
            &mut capacities.sockets,
        ),
        (
            "portolan.maps.sourceRanges",
            maps.source_ranges,
            &mut capacities.source_ranges,
        ),
    ];
    for (key, given, capacity) in settings {
        match given {
            None => {}
            // More than 2^26 of the smallest elements is beyond what the kernel allocates.
            Some(entries @ 16..=67_108_864) => *capacity = entries,
            Some(entries) => {
                let remedy = "is not between 16 and 67108864 entries; correct it";
                return Err(invalid(key, &entries.to_string(), remedy));
            }
        }
    }
    Ok(capacities)
}
