// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parses addresses, ranges, ports and protocols of Kubernetes objects. Called by the conversions
//! in `model` and by `config`.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use proxy_common::{Port, Protocol};

use super::Complaints;

/// Parses an IP address; None if it is invalid. KUBE: decimal octets may have leading zeros, and
/// an IPv4-mapped IPv6 address is an IPv4 address.
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

/// The [`flaw`] of an address that only the hosts of one link reach.
pub const LINK_LOCAL: &str = "a link-local address";

/// Returns why no service and no endpoint can have the address; None if they can. The address must
/// come from [`address`].
///
/// KUBE: the API server's `ValidateEndpointIP` refuses the same addresses as endpoints and external
/// IPs, but does not check load balancer IPs. In addition, every multicast address and the
/// broadcast address is refused here.
pub fn flaw(address: IpAddr) -> Option<&'static str> {
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    // The maps also use the unspecified address as the key for "every address of the node".
    if address.is_unspecified() {
        Some("an unspecified address")
    } else if address.is_loopback() {
        Some("a loopback address")
    } else if link_local {
        Some(LINK_LOCAL)
    } else if address.is_multicast() {
        Some("a multicast address")
    } else {
        (address == IpAddr::V4(Ipv4Addr::BROADCAST)).then_some("the broadcast address")
    }
}

/// Parses an address range and clears its host bits; None if it is invalid. KUBE: surrounding
/// blanks are allowed.
pub fn range(text: &str) -> Option<IpNet> {
    let (start, length) = text.trim().split_once('/')?;
    let length = length.parse().ok()?;
    Some(IpNet::new(address(start)?, length).ok()?.trunc())
}

/// Returns the port for a number from 1 to 65535; None for any other number.
pub fn port(number: i32) -> Option<Port> {
    u16::try_from(number)
        .ok()
        .filter(|number| *number != 0)
        .map(Port::from_host)
}

/// Parses a protocol name; None if it is unknown. KUBE: without a name, the protocol is TCP.
pub fn protocol(name: Option<&str>) -> Option<Protocol> {
    match name {
        None | Some("" | "TCP") => Some(Protocol::TCP),
        Some("UDP") => Some(Protocol::UDP),
        Some("SCTP") => Some(Protocol::SCTP),
        Some(_) => None,
    }
}

/// Reads protocol and number of a port; else returns what is wrong, and with which of the two.
pub(super) fn port_of(
    name: Option<&str>,
    number: Option<i32>,
) -> Result<(Protocol, Port), (String, &'static str)> {
    let Some(protocol) = protocol(name) else {
        let given = name.unwrap_or_default();
        return Err((
            format!("protocol {given:?} is not TCP, UDP or SCTP"),
            "protocol",
        ));
    };
    let Some(port) = number.and_then(port) else {
        let given = number.map_or("(none)".to_owned(), |number| number.to_string());
        return Err((format!("port {given} is not between 1 and 65535"), "number"));
    };
    Ok((protocol, port))
}

/// Describes a part of an object, with its name if it has one.
pub(super) fn named(field: String, name: &str) -> String {
    match name {
        "" => field,
        name => format!("{field} ({name})"),
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

/// What becomes of an invalid range, and the remedy.
pub(super) const IGNORED: &str = "is ignored; write it like 192.0.2.0/24";

/// Parses the address ranges in a field of an object; leaves out an invalid text, with a warning
/// that ends with its `fate`.
pub(super) fn ranges<'a>(
    field: &str,
    texts: impl IntoIterator<Item = &'a String>,
    fate: &str,
    complaints: &mut Complaints,
) -> Box<[IpNet]> {
    let parsed = texts.into_iter().filter_map(|text| {
        let parsed = range(text);
        if parsed.is_none() {
            complaints.add(format!(
                "{field}: {text:?} is not an address range and {fate}"
            ));
        }
        parsed
    });
    parsed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_kubernetes_reads_them() {
        for (text, expected) in [
            ("10.0.0.1", Some("10.0.0.1")),
            ("010.000.0.01", Some("10.0.0.1")),
            ("::ffff:10.0.0.1", Some("10.0.0.1")),
            ("fd00::1", Some("fd00::1")),
            ("10.0.0", None),
            ("10..0.1", None),
            ("10.0.0.256", None),
            ("", None),
            ("None", None),
        ] {
            let found = address(text).map(|address| address.to_string());
            assert_eq!(found.as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn ranges_lose_blanks_and_host_bits() {
        for (text, expected) in [
            (" 10.1.2.3/8 ", Some("10.0.0.0/8")),
            ("fd00::1/64", Some("fd00::/64")),
            ("10.0.0.0", None),
            ("10.0.0.0/33", None),
        ] {
            let found = range(text).map(|range| range.to_string());
            assert_eq!(found.as_deref(), expected, "{text}");
        }
    }
}
