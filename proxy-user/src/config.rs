// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Settings under kube-proxy's names: from a file, overridden by flags, validated. Built by `cli::run`,
//! used by `agent`.

use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use ipnet::IpNet;
use proxy_common::{
    Prefix, Settings, V4, V6, flow::IdleTimes, masquerade::PortRanges, settings::POD_RANGES,
};
use serde::Deserialize;

use crate::{
    datapath::{Capacities, DEFAULT_PIN_DIR},
    model::parse,
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
    /// Globs over interface names that replace detection; empty means detection.
    pub interfaces: Vec<String>,
    pub masquerade: Masquerade,
    pub masquerade_ports: PortRanges,
    pub capacities: Capacities,
    pub log_level: String,
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
    pub interfaces: Option<Vec<String>>,
    pub masquerade: Option<Masquerade>,
    pub masquerade_ports: Option<Vec<String>>,
    #[serde(default)]
    pub maps: MapSizes,
    pub log_level: Option<String>,
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
            interfaces: self.interfaces.or(other.interfaces),
            masquerade: self.masquerade.or(other.masquerade),
            masquerade_ports: self.masquerade_ports.or(other.masquerade_ports),
            maps: other.maps,
            log_level: self.log_level.or(other.log_level),
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
            interfaces: self.interfaces.unwrap_or_default(),
            masquerade: self.masquerade.unwrap_or_default(),
            masquerade_ports: masquerade_ports(self.masquerade_ports.as_deref())?,
            capacities: capacities(&self.maps)?,
            log_level: self.log_level.unwrap_or_else(|| "info".to_owned()),
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

fn invalid(key: &'static str, value: &str, remedy: impl Into<String>) -> ConfigError {
    ConfigError::Invalid {
        key,
        value: value.to_owned(),
        remedy: remedy.into(),
    }
}

fn ranges<'a>(
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

fn node_port_addresses(texts: &[String]) -> Result<NodePortAddresses, ConfigError> {
    match texts {
        [] => Ok(NodePortAddresses::Every),
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

fn bind_address(
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

fn idle_times(conntrack: &Conntrack) -> Result<IdleTimes, ConfigError> {
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

fn masquerade_ports(texts: Option<&[String]>) -> Result<PortRanges, ConfigError> {
    const KEY: &str = "masqueradePorts";
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

fn capacities(maps: &MapSizes) -> Result<Capacities, ConfigError> {
    let mut capacities = Capacities::default();
    let settings = [
        ("maps.frontends", maps.frontends, &mut capacities.frontends),
        ("maps.records", maps.records, &mut capacities.records),
        ("maps.slots", maps.slots, &mut capacities.slots),
        ("maps.backends", maps.backends, &mut capacities.backends),
        ("maps.flows", maps.flows, &mut capacities.flows),
        ("maps.affinity", maps.affinity, &mut capacities.affinity),
        (
            "maps.sourceRanges",
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

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn config(text: &str) -> Result<Config, ConfigError> {
        Source::parse("portolan.yaml", text)?.check()
    }

    #[test]
    fn nothing_said_means_kube_proxys_defaults() {
        for text in ["", "# nothing\n", "---\n", "{}\n"] {
            let config = config(text).expect("valid");
            assert_eq!(config.healthz_bind_address.to_string(), "0.0.0.0:10256");
            assert_eq!(config.metrics_bind_address.to_string(), "127.0.0.1:10249");
            assert_eq!(config.node_port_addresses, NodePortAddresses::Every);
            assert_eq!(config.local_detection, LocalDetection::None);
            assert_eq!(config.idle_times, IdleTimes::DEFAULT);
            assert_eq!(config.settings(), Settings::EMPTY);
        }
    }

    #[test]
    fn every_key_is_read() {
        let text = "
clusterCIDR: 10.40.0.0/16, fd00:40::/48
hostnameOverride: node-a
masqueradeAll: true
nodePortAddresses: [192.168.40.0/24]
localDetection: clusterCIDR
conntrack: {tcpEstablishedTimeout: 12h0m0s, tcpCloseWaitTimeout: 30m, udpTimeout: 40s, udpStreamTimeout: '0'}
metricsBindAddress: 127.0.0.1:1
healthzBindAddress: '[::]:2'
pinDirectory: /sys/fs/bpf/elsewhere
socketBalancing: host
interfaces: [eth*]
masquerade: mark
masqueradePorts: [5000-5999]
maps: {frontends: 1024, records: 1025, slots: 1026, backends: 1027, flows: 1028, affinity: 1029, sourceRanges: 1030}
logLevel: debug
";
        let config = config(text).expect("valid");
        assert_eq!(config.hostname_override.as_deref(), Some("node-a"));
        assert_eq!(config.pin_directory, Path::new("/sys/fs/bpf/elsewhere"));
        assert_eq!(config.socket_balancing, SocketBalancing::Host);
        assert_eq!(config.interfaces, ["eth*"]);
        assert_eq!(config.capacities.source_ranges, 1030);
        assert_eq!(config.log_level, "debug");
        let times = config.idle_times;
        assert_eq!(
            (times.tcp_established, times.tcp_close_wait),
            (43_200, 1800)
        );
        assert_eq!(
            (times.udp, times.udp_stream),
            (40, IdleTimes::DEFAULT.udp_stream)
        );
        let settings = config.settings();
        assert_eq!(
            settings.flags,
            Settings::EMPTY.flags
                | Settings::MASQUERADE_ALL
                | Settings::MARK_ONLY
                | Settings::DETECTS_PODS
        );
        assert!(settings.pods_v4[0].contains(std::net::Ipv4Addr::new(10, 40, 7, 1).into()));
        assert!(!settings.pods_v4[0].contains(std::net::Ipv4Addr::new(10, 41, 7, 1).into()));
        assert_eq!(settings.pods_v4[1], Prefix::<V4>::NONE);
        assert!(
            settings.pods_v6[0].contains(
                "fd00:40::1"
                    .parse::<std::net::Ipv6Addr>()
                    .expect("v6")
                    .into()
            )
        );
        assert_eq!(settings.masquerade_ports, PortRanges([5000, 5999, 0, 0]));
    }

    #[rstest]
    #[case(
        "clusterCIDR: 10.40.0.0",
        "clusterCIDR: \"10.40.0.0\" is not an address range; write it like 10.244.0.0/16"
    )]
    #[case(
        "clusterCIDR: 10.0.0.0/24,10.0.1.0/24,10.0.2.0/24,10.0.3.0/24,10.0.4.0/24",
        "clusterCIDR: \"10.0.0.0/24,10.0.1.0/24,10.0.2.0/24,10.0.3.0/24,10.0.4.0/24\" has more than 4 ranges of one family; merge some into a larger one"
    )]
    #[case(
        "localDetection: clusterCIDR",
        "localDetection: \"clusterCIDR\" needs clusterCIDR to be set; set it or use none"
    )]
    #[case(
        "nodePortAddresses: [primary, 10.0.0.0/8]",
        "nodePortAddresses: \"primary,10.0.0.0/8\" mixes primary with ranges; use primary alone or ranges alone"
    )]
    #[case(
        "nodePortAddresses: [eth0]",
        "nodePortAddresses: \"eth0\" is not an address range; write it like 10.244.0.0/16"
    )]
    #[case(
        "conntrack: {udpTimeout: soon}",
        "conntrack.udpTimeout: \"soon\" is not a duration; write it like 24h0m0s or 120s, or 0 for the default"
    )]
    #[case(
        "conntrack: {udpTimeout: 10ms}",
        "conntrack.udpTimeout: \"10ms\" is not between 1s and 136 years; correct it"
    )]
    #[case(
        "healthzBindAddress: localhost",
        "healthzBindAddress: \"localhost\" is not an address and port; write it like 0.0.0.0:10256"
    )]
    #[case(
        "masqueradePorts: ['1-2', '3-4', '5-6']",
        "masqueradePorts: \"1-2,3-4,5-6\" is not one or two ranges; write it like [1024-29999, 61000-65535]"
    )]
    #[case(
        "masqueradePorts: [9-8]",
        "masqueradePorts: \"9-8\" is not a range of ports; write it like 1024-29999"
    )]
    #[case(
        "maps: {flows: 1}",
        "maps.flows: \"1\" is not between 16 and 67108864 entries; correct it"
    )]
    fn a_bad_value_is_told_with_key_value_and_remedy(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(config(text).expect_err("invalid").to_string(), expected);
    }

    #[rstest]
    #[case("masqueradeAll: false\nclusterCidr: 10.0.0.0/8\n", 2, &["clusterCidr", "clusterCIDR", "masqueradeAll"])]
    #[case("maps:\n  flow: 3\n", 2, &["flow", "sourceRanges"])]
    #[case("masqueradeAll: maybe\n", 1, &["maybe"])]
    #[case("socketBalancing: some\n", 1, &["some", "all", "host"])]
    fn an_unknown_key_or_word_is_told_with_those_that_are_known(
        #[case] text: &str,
        #[case] line: u64,
        #[case] words: &[&str],
    ) {
        let error = config(text).expect_err("malformed").to_string();
        assert!(
            error.starts_with(&format!("configuration file portolan.yaml, line {line}: ")),
            "{error}"
        );
        for word in words {
            assert!(error.contains(word), "{word} in {error}");
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_told() {
        let error = Source::read(Path::new("/nonexistent.yaml")).expect_err("unreadable");
        assert_eq!(
            error.to_string(),
            "cannot read the configuration file /nonexistent.yaml; check the path given to --config"
        );
    }

    #[test]
    fn flags_override_the_file() {
        let file = Source::parse(
            "f",
            "masqueradeAll: true\nhostnameOverride: a\nmaps: {flows: 99}\n",
        );
        let flags = Source {
            hostname_override: Some("b".to_owned()),
            ..Source::default()
        };
        let config = flags.or(file.expect("valid")).check().expect("valid");
        assert_eq!(config.hostname_override.as_deref(), Some("b"));
        assert!(config.masquerade_all);
        assert_eq!(config.capacities.flows, 99);
    }

    #[rstest]
    #[case("24h0m0s", Some(86_400_000))]
    #[case("1.5s", Some(1500))]
    #[case("300ms", Some(300))]
    #[case("0", Some(0))]
    #[case("0s", Some(0))]
    #[case("", None)]
    #[case("10", None)]
    #[case("h", None)]
    #[case("-1s", None)]
    #[case("1d", None)]
    fn durations_are_written_as_in_go(#[case] text: &str, #[case] milliseconds: Option<u64>) {
        assert_eq!(duration(text), milliseconds.map(Duration::from_millis));
    }

    #[rstest]
    #[case::every("[]", "127.0.0.1", true)]
    #[case::never_on_loopback_of_ipv6("[]", "::1", false)]
    #[case::primary("[primary]", "192.168.40.2", true)]
    #[case::not_primary("[primary]", "192.168.41.2", false)]
    #[case::within("[192.168.41.0/24]", "192.168.41.2", true)]
    #[case::outside("[192.168.41.0/24]", "192.168.40.2", false)]
    #[case::a_family_without_a_range_has_every_one("[192.168.41.0/24]", "fd00:c0::2", true)]
    #[case::both_families("[192.168.41.0/24, 'fd00:c1::/64']", "fd00:c0::2", false)]
    fn node_ports_are_served_where_configured(
        #[case] setting: &str,
        #[case] address: &str,
        #[case] served: bool,
    ) {
        let config = config(&format!("nodePortAddresses: {setting}")).expect("valid");
        let internal = [
            "192.168.40.2".parse().expect("v4"),
            "fd00:c0::2".parse().expect("v6"),
        ];
        let address = address.parse().expect("an address");
        assert_eq!(config.node_port_addresses.serve(address, &internal), served);
    }
}
