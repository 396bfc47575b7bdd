// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parses the texts of settings, for `table`. Every error names the value and the remedy.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use control::{model::parse, object::ObjectName};
use ipnet::IpNet;
use proxy_common::{masquerade::PortRanges, settings::RANGES};
use tracing_subscriber::EnvFilter;

use super::{Config, ConfigError, NodePortAddresses};

/// The least and the most entries of a map. The kernel allocates at most 2^26 of the smallest.
pub(super) const ENTRIES: [u32; 2] = [16, 67_108_864];

/// The two fields that one timeout setting fills, in seconds.
pub struct Seconds<'a> {
    /// The idle time of portolan's flow table. KUBE: a setting of zero keeps the default.
    pub idle: &'a mut u32,
    /// The timeout of the node's nf_conntrack. KUBE: zero, None here, leaves it unchanged.
    pub conntrack: &'a mut Option<u32>,
}

/// Why a value cannot be used, and what to do.
#[derive(PartialEq, Eq, Debug)]
pub struct Problem {
    value: String,
    remedy: String,
}

impl Problem {
    pub(super) fn new(value: impl ToString, remedy: impl Into<String>) -> Self {
        Self {
            value: value.to_string(),
            remedy: remedy.into(),
        }
    }

    pub(super) fn with_key(self, key: &'static str) -> ConfigError {
        let Self { value, remedy } = self;
        ConfigError::Invalid { key, value, remedy }
    }
}

/// Parses namespace and name of an object.
pub(super) fn object_name(text: &str) -> Result<ObjectName, Problem> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
            Ok(ObjectName::new(namespace, name))
        }
        _ => Err(Problem::new(
            text,
            "is no object; write it like kube-system/portolan-agents",
        )),
    }
}

fn ranges<'a>(texts: impl Iterator<Item = &'a str>) -> Result<Vec<IpNet>, Problem> {
    texts
        .map(|text| {
            parse::range(text).ok_or_else(|| {
                Problem::new(text, "is not an address range; write it like 10.244.0.0/16")
            })
        })
        .collect()
}

/// Parses the ranges of pods. The kernel programs store at most [`RANGES`] of each family.
pub(super) fn pod_ranges<'a>(texts: impl Iterator<Item = &'a str>) -> Result<Vec<IpNet>, Problem> {
    let ranges = ranges(texts)?;
    for v4 in [true, false] {
        let of_family = ranges.iter().filter(|r| r.addr().is_ipv4() == v4);
        if of_family.count() > RANGES {
            let all: Vec<_> = ranges.iter().map(ToString::to_string).collect();
            let remedy = format!(
                "has more than {RANGES} ranges of one family; merge some into a larger one"
            );
            return Err(Problem::new(all.join(","), remedy));
        }
    }
    Ok(ranges)
}

/// Parses `nodePortAddresses`. An empty list keeps the default, which depends on the mode. KUBE: an
/// empty text is an invalid range, and does not stand for all addresses.
pub(super) fn node_port_addresses(config: &mut Config, texts: &[String]) -> Result<(), Problem> {
    config.node_port_addresses = match texts {
        [] => return Ok(()),
        [only] if only == "primary" => NodePortAddresses::Primary,
        texts if texts.iter().any(|text| text == "primary") => {
            let remedy = "mixes primary with ranges; use primary alone or ranges alone";
            return Err(Problem::new(texts.join(","), remedy));
        }
        texts => NodePortAddresses::Within(ranges(texts.iter().map(String::as_str))?),
    };
    Ok(())
}

/// Returns the log level that corresponds to klog's verbosity.
pub(super) fn level_of_verbosity(verbosity: i64) -> &'static str {
    match verbosity {
        ..4 => "info",
        4..6 => "debug",
        6.. => "trace",
    }
}

/// Checks a log level (`info`) or filter (`warn,portolan_source=debug`), and returns it.
pub(super) fn log_level(text: &str) -> Result<String, Problem> {
    let remedy = "is not a level; use error, warn, info, debug or trace, or a filter like warn,portolan_source=debug";
    let parsed = EnvFilter::try_new(text).map_err(|_| Problem::new(text, remedy));
    parsed.map(|_| text.to_owned())
}

pub(super) fn own_addresses(texts: &[String]) -> Result<Vec<IpAddr>, Problem> {
    let parsed = texts.iter().map(|text| {
        let remedy = "is not an IP address; write it like 169.254.20.10";
        text.parse().map_err(|_| Problem::new(text, remedy))
    });
    parsed.collect()
}

/// Parses `bindAddress`. KUBE: its family decides where the agent's servers listen by default.
pub(super) fn bind_address(text: &str, config: &mut Config) -> Result<(), Problem> {
    let Some(address) = parse::address(text) else {
        let remedy = "is not an IP address; write it like 0.0.0.0 or ::";
        return Err(Problem::new(text, remedy));
    };
    let (every, local): (IpAddr, IpAddr) = match address {
        IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(_) => (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::LOCALHOST.into()),
    };
    config.bind_address = address;
    config.healthz_bind_address.set_ip(every);
    config.metrics_bind_address.set_ip(local);
    Ok(())
}

/// Parses an address, which replaces `address`. KUBE: without a port, the default port is used.
pub(super) fn address(text: &str, address: &mut SocketAddr) -> Result<(), Problem> {
    let with_port = || {
        let (ip, port) = text.rsplit_once(':')?;
        let ip = match ip.strip_prefix('[') {
            Some(ip) => parse::address(ip.strip_suffix(']')?)?,
            None => parse::address(ip).filter(IpAddr::is_ipv4)?,
        };
        Some(SocketAddr::new(ip, port.parse().ok()?))
    };
    let alone = || Some(SocketAddr::new(parse::address(text)?, address.port()));
    match alone().or_else(with_port) {
        Some(given) if given.port() != 0 => {
            *address = given;
            Ok(())
        }
        _ => {
            // The example has the family that the text seems to mean.
            let ip = match (address.ip(), text.matches(':').count()) {
                (IpAddr::V4(ip), 2..) if ip.is_loopback() => Ipv6Addr::LOCALHOST.into(),
                (IpAddr::V4(_), 2..) => Ipv6Addr::UNSPECIFIED.into(),
                (ip, _) => ip,
            };
            let example = SocketAddr::new(ip, address.port());
            let remedy =
                format!("is not an IP address with or without a port; write it like {example}");
            Err(Problem::new(text, remedy))
        }
    }
}

/// Parses a duration and replaces the defaults by it; a part of a second counts as a full one.
/// KUBE: zero keeps the default idle time, and leaves the timeout of nf_conntrack unchanged.
pub(super) fn seconds(text: &str, seconds: Seconds<'_>) -> Result<(), Problem> {
    let Some(duration) = duration(text) else {
        let remedy = "is not a duration; write it like 24h0m0s or 120s, or 0s for the default";
        return Err(Problem::new(text, remedy));
    };
    if duration.is_zero() {
        *seconds.conntrack = None;
        return Ok(());
    }
    let whole = duration.as_secs() + u64::from(duration.subsec_nanos() != 0);
    let whole = u32::try_from(whole).unwrap_or(u32::MAX);
    (*seconds.idle, *seconds.conntrack) = (whole, Some(whole));
    Ok(())
}

/// Writes a duration as Go does: `24h0m0s`.
pub(super) fn go_duration(seconds: u32) -> String {
    let (hours, minutes, rest) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{rest}s"),
        (0, minutes) => format!("{minutes}m{rest}s"),
        (hours, minutes) => format!("{hours}h{minutes}m{rest}s"),
    }
}

/// Parses a boolean as Go does; None if it is invalid.
pub fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "True" | "TRUE" => Some(true),
        "0" | "f" | "F" | "false" | "False" | "FALSE" => Some(false),
        _ => None,
    }
}

/// Parses an integer as Go does: with a sign, a prefix like `0x`, underscores. None if invalid.
pub fn integer(text: &str) -> Option<i64> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let digits = digits.to_ascii_lowercase();
    let (base, digits) = match digits.get(..2) {
        Some("0x") => (16, digits.get(2..)?),
        Some("0b") => (2, digits.get(2..)?),
        Some("0o") => (8, digits.get(2..)?),
        Some(two) if two.starts_with('0') => (8, digits.get(1..)?),
        _ => (10, digits.as_str()),
    };
    if digits.starts_with(['+', '-']) || digits.ends_with('_') {
        return None;
    }
    i64::from_str_radix(&format!("{sign}{}", digits.replace('_', "")), base).ok()
}

/// Parses a duration in Go's notation: `1h30m`, `+1.5s`, `0`. None if it is invalid or negative.
pub fn duration(text: &str) -> Option<Duration> {
    let text = text.strip_prefix('+').unwrap_or(text);
    // Minus zero counts as zero.
    let (text, most) = match text.strip_prefix('-') {
        Some(text) => (text, Duration::ZERO),
        None => (text, Duration::from_nanos(i64::MAX.unsigned_abs())),
    };
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
            // The unit may begin with the micro sign or with the Greek letter.
            "us" | "\u{b5}s" | "\u{3bc}s" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        let number: f64 = number.parse().ok()?;
        total = total.checked_add(Duration::try_from_secs_f64(number * seconds).ok()?)?;
        rest = tail;
    }
    (!text.is_empty() && total <= most).then_some(total)
}

pub(super) fn masquerade_ports(texts: &[String]) -> Result<PortRanges, Problem> {
    let mut ranges = [0; 4];
    if texts.is_empty() || texts.len() > 2 {
        let remedy = "is not one or two ranges; write it like [1024-29999, 61000-65535]";
        return Err(Problem::new(texts.join(","), remedy));
    }
    for (to, text) in ranges.chunks_exact_mut(2).zip(texts) {
        let parsed = text.split_once('-').and_then(|(from, until)| {
            let range = [from.trim().parse().ok()?, until.trim().parse().ok()?];
            (range[0] > 0 && range[0] <= range[1]).then_some(range)
        });
        let Some(range) = parsed else {
            let remedy = "is not a range of ports; write it like 1024-29999";
            return Err(Problem::new(text, remedy));
        };
        to.copy_from_slice(&range);
    }
    Ok(PortRanges(ranges))
}

/// Checks that a number of connections fits into 32 bits, and returns it.
pub(super) fn connections(number: i64) -> Result<u32, Problem> {
    let remedy = "is not between 0 and 4294967295; correct it";
    u32::try_from(number).map_err(|_| Problem::new(number, remedy))
}

pub(super) fn entries(number: i64) -> Result<u32, Problem> {
    let [least, most] = ENTRIES;
    let entries = u32::try_from(number).ok();
    let entries = entries.filter(|entries| (least..=most).contains(entries));
    let remedy = format!("is not between {least} and {most} entries; correct it");
    entries.ok_or_else(|| Problem::new(number, remedy))
}
