// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What kube-proxy's mode ipvs has on the node: services, connections, addresses. In: /proc/net and the interfaces. Out: findings.

use std::{fs, path::Path};

use proxy_common::maps::capacity;

use super::finding::Finding;
use crate::interfaces::Interface;

/// The device on which kube-proxy's mode ipvs puts every service address.
pub(super) const IPVS_DEVICE: &str = "kube-ipvs0";

/// What IPVS holds on this node.
pub(super) fn findings(interfaces: &[Interface]) -> Vec<Finding> {
    let count = |file: &str| {
        let text = fs::read_to_string(Path::new("/proc/net").join(file)).unwrap_or_default();
        text.lines().filter(|line| is_ipvs_entry(line)).count()
    };
    of(count("ip_vs"), count("ip_vs_conn"), interfaces)
}

/// A line about a service or a connection; others are headings and destinations.
fn is_ipvs_entry(line: &str) -> bool {
    let first = line.split_whitespace().next();
    first.is_some_and(|word| matches!(word, "TCP" | "UDP" | "SCTP"))
        && !line.contains("LocalAddress")
}

fn of(services: usize, connections: usize, interfaces: &[Interface]) -> Vec<Finding> {
    let mut findings = Vec::new();
    if services > 0 {
        findings.push(Finding::differs(
            "IPVS",
            format!(
                "it serves {services} service ports and holds {connections} connections: open TCP connections of pods to cluster IPs \
                 are reset when the node switches"
            ),
            "drain the node before you switch it, and restart it then: docs/migrate.md, \"From IPVS\"",
        ));
    }
    for (family, v4) in [("IPv4", true), ("IPv6", false)] {
        let addresses = interfaces.iter().flat_map(|one| &one.addresses);
        let count = addresses.filter(|net| net.addr().is_ipv4() == v4).count();
        if count > capacity::NODE_ADDRESSES {
            let on_device = interfaces.iter().any(|one| one.name == IPVS_DEVICE);
            findings.push(Finding::in_the_way(
                "addresses",
                format!(
                    "the node has {count} {family} addresses, and there is room for {}: some would have no node ports, and /healthz \
                     would say so",
                    capacity::NODE_ADDRESSES
                ),
                if on_device {
                    "remove the device when the node switches: `ip link delete kube-ipvs0`"
                } else {
                    "take addresses away"
                },
            ));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{interfaces::InterfaceKind, testing::interface};

    #[test]
    fn ipvs_is_told_by_its_services_and_its_addresses() {
        assert!(is_ipvs_entry("TCP  0A600001:01BB rr "));
        for line in [
            "IP Virtual Server version 1.2.1 (size=4096)",
            "Prot LocalAddress:Port Scheduler Flags",
            "  -> RemoteAddress:Port Forward Weight ActiveConn InActConn",
            "",
        ] {
            assert!(!is_ipvs_entry(line), "{line}");
        }
        assert_eq!(of(0, 0, &[]), []);
        let found = of(3, 7, &[]);
        assert!(
            found[0]
                .found
                .contains("3 service ports and holds 7 connections")
        );
        let mut device = interface(5, IPVS_DEVICE, InterfaceKind::Other);
        let net: ipnet::IpNet = "10.96.0.1/32".parse().expect("an address");
        device.addresses = vec![net; capacity::NODE_ADDRESSES];
        assert_eq!(of(0, 0, &[device.clone()]), []);
        device.addresses.push(net);
        let found = of(0, 0, &[device]);
        assert!(
            found[0].remedy.contains("ip link delete kube-ipvs0"),
            "{found:?}"
        );
    }
}
