// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parses addresses, ranges, ports and protocols of Kubernetes objects. Called by the conversions of this module
//! and by `config`.

use std::net::IpAddr;

use ipnet::IpNet;
use proxy_common::{Port, Protocol};

use super::Complaints;

/// KUBE: decimal octets may have leading zeros, and an IPv4-mapped IPv6 address is an IPv4 address.
pub fn address(text: &str) -> Option<IpAddr> {
    let parsed = text
        .parse::<IpAddr>()
        .ok()
        .or_else(|| without_leading_zeros(text)?.parse().ok())?;
    Some(match parsed {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(parsed, IpAddr::V4),
        IpAddr::V4(_) => parsed,
    })
}

/// A range with its host bits cleared. KUBE: surrounding blanks are allowed.
pub fn range(text: &str) -> Option<IpNet> {
    let (start, length) = text.trim().split_once('/')?;
    let length = length.parse().ok()?;
    Some(IpNet::new(address(start)?, length).ok()?.trunc())
}

/// A port number from 1 to 65535.
pub fn port(number: i32) -> Option<Port> {
    u16::try_from(number)
        .ok()
        .filter(|number| *number != 0)
        .map(Port::from_host)
}

/// KUBE: without a protocol it is TCP.
pub fn protocol(name: Option<&str>) -> Option<Protocol> {
    match name {
        None | Some("" | "TCP") => Some(Protocol::TCP),
        Some("UDP") => Some(Protocol::UDP),
        Some("SCTP") => Some(Protocol::SCTP),
        Some(_) => None,
    }
}

fn without_leading_zeros(text: &str) -> Option<String> {
    let octets: Vec<_> = text
        .split('.')
        .map(|octet| match octet.trim_start_matches('0') {
            "" if !octet.is_empty() => "0",
            trimmed => trimmed,
        })
        .collect();
    (octets.len() == 4).then(|| octets.join("."))
}

/// The address ranges in a field of an object; a text that is none is left out, with a warning.
pub(super) fn ranges<'a>(
    field: &str,
    texts: impl Iterator<Item = &'a String>,
    complaints: &mut Complaints,
) -> Box<[IpNet]> {
    let mut parsed = Vec::new();
    for text in texts {
        match range(text) {
            Some(range) => parsed.push(range),
            None => complaints.add(format!(
                "{field}: {text:?} is not an address range and is ignored; write it like 192.0.2.0/24",
            )),
        }
    }
    parsed.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("10.0.0.1", Some("10.0.0.1"))]
    #[case("010.000.0.01", Some("10.0.0.1"))]
    #[case("::ffff:10.0.0.1", Some("10.0.0.1"))]
    #[case("fd00::1", Some("fd00::1"))]
    #[case("10.0.0", None)]
    #[case("10..0.1", None)]
    #[case("10.0.0.256", None)]
    #[case("", None)]
    #[case("None", None)]
    fn addresses_are_read_as_kubernetes_reads_them(
        #[case] text: &str,
        #[case] expected: Option<&str>,
    ) {
        assert_eq!(
            address(text),
            expected.map(|text| text.parse().expect("an address"))
        );
    }

    #[rstest]
    #[case(" 10.1.2.3/8 ", Some("10.0.0.0/8"))]
    #[case("fd00::1/64", Some("fd00::/64"))]
    #[case("10.0.0.0", None)]
    #[case("10.0.0.0/33", None)]
    fn ranges_lose_blanks_and_host_bits(#[case] text: &str, #[case] expected: Option<&str>) {
        assert_eq!(
            range(text),
            expected.map(|text| text.parse().expect("a range"))
        );
    }
}
