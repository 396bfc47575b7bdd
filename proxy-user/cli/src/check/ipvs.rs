// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Findings about what kube-proxy's mode ipvs has left on the node: services, connections,
//! addresses. Reads /proc/net and the interfaces.

use std::{fmt::Display, fs, path::Path};

use linux::interfaces::Interface;
use proxy_common::maps::capacity;

use crate::{finding::Finding, frame::read_value};

pub(super) fn findings(interfaces: &[Interface]) -> Vec<Finding> {
    let count = |file: &str| {
        let text = fs::read_to_string(Path::new("/proc/net").join(file)).unwrap_or_default();
        text.lines().filter(|line| is_ipvs_entry(line)).count()
    };
    let tracked: Option<u8> = read_value("/proc/sys/net/ipv4/vs/conntrack");
    let tracked = tracked.is_some_and(|word| word != 0);
    of(["ip_vs", "ip_vs_conn"].map(count), tracked, interfaces)
}

/// Returns whether a line of /proc/net/ip_vs or ip_vs_conn is about a service or a connection.
fn is_ipvs_entry(line: &str) -> bool {
    let first = line.split_whitespace().next();
    first.is_some_and(|word| matches!(word, "TCP" | "UDP" | "SCTP"))
        && !line.contains("LocalAddress")
}

fn of(counts: [usize; 2], tracked: bool, interfaces: &[Interface]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let [services, connections] = counts;
    if services > 0 {
        let code = match tracked {
            true => "ipvs-tracked",
            false => "ipvs-untracked",
        };
        findings.push(Finding::of(code, &[&services, &connections]));
    }
    for (family, v4) in [("IPv4", true), ("IPv6", false)] {
        let of_node = interfaces.iter().filter(|one| !one.is_of_ipvs());
        let addresses = of_node.flat_map(|one| &one.addresses);
        let count = addresses.filter(|net| net.addr().is_ipv4() == v4).count();
        if count > capacity::NODE_ADDRESSES {
            let words: [&dyn Display; 3] = [&count, &family, &capacity::NODE_ADDRESSES];
            findings.push(Finding::of("addresses", &words));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux::{interfaces::InterfaceKind, testing::interface};

    #[test]
    fn leftover_ipvs_services_and_addresses_are_findings() {
        assert!(is_ipvs_entry("TCP  0A600001:01BB rr "));
        for line in [
            "IP Virtual Server version 1.2.1 (size=4096)",
            "Prot LocalAddress:Port Scheduler Flags",
            "  -> RemoteAddress:Port Forward Weight ActiveConn InActConn",
            "",
        ] {
            assert!(!is_ipvs_entry(line), "{line}");
        }
        assert_eq!(of([0; 2], true, &[]), []);
        let [tracked, untracked] = [true, false].map(|tracked| of([3, 7], tracked, &[]).remove(0));
        let holds = "3 service ports and holds 7 connections";
        assert!(tracked.found.contains(holds) && tracked.remedy.is_empty());
        assert!(untracked.found.contains(holds) && untracked.remedy.contains("vs.conntrack=1"));
        let mut device = interface(5, "dummy0", InterfaceKind::Other);
        let net: ipnet::IpNet = "10.96.0.1/32".parse().expect("an address");
        device.addresses = vec![net; capacity::NODE_ADDRESSES];
        assert_eq!(of([0; 2], true, &[device.clone()]), []);
        device.addresses.push(net);
        assert_eq!(of([0; 2], true, &[device.clone()]).len(), 1);
        device.name = "kube-ipvs0".into();
        assert_eq!(of([0; 2], true, &[device]), []);
    }
}
