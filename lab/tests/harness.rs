// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The checks of the conformance cases can fail: nft rules on a simulated node imitate right and
//! wrong proxies, and each wrong one is told from the right one. Needs root and nft, but no agent.

use std::{collections::BTreeMap, net::IpAddr};

use lab::{
    cases::{cluster, flows::Flows, format::Case},
    node::{
        cgroup::Cgroup,
        layout::Layout,
        settings::SocketBalancing,
        topology::{Plumbing, Topology},
    },
};
use rstest::rstest;

const ENDPOINTS: &str = "
kind: EndpointSlice
metadata: {name: web}
ports: [{port: 8080}, {port: 8080, protocol: UDP}, {port: 8080, protocol: SCTP}]
endpoints: [{addresses: [10.40.1.10], nodeName: node-a}, {addresses: [10.40.2.10]}]
";

const TO_POD: &str =
    "type nat hook prerouting priority -100; ip daddr 198.51.100.1 dnat ip to 10.40.1.10";
const TO_BOTH: &str = "type nat hook prerouting priority -100; ip daddr 198.51.100.1 dnat ip to \
                       numgen random mod 2 map { 0: 10.40.1.10, 1: 10.40.2.10 }";
/// Without conntrack, so that answers have the pod's own address as their source.
const ONE_WAY: &str =
    "type filter hook prerouting priority -150; ip daddr 198.51.100.1 ip daddr set 10.40.1.10";
const MASQUERADE: &str = "type nat hook postrouting priority 100; ip daddr 10.40.1.10 masquerade";
const DROP: &str = "type filter hook forward priority 0; ip daddr 198.51.100.1 drop";
const REFUSE: &str = "type filter hook forward priority 0; ip daddr 198.51.100.1 reject with icmpx type port-unreachable";
const PROHIBIT: &str = "type filter hook forward priority 0; ip daddr 198.51.100.1 reject with icmpx type admin-prohibited";
const OTHER_PORT: &str =
    "type filter hook forward priority -150; ip daddr 198.51.100.1 th dport set 8081";
const DAMAGE: &str = "type filter hook forward priority -150; ip daddr 10.40.1.10 udp length > 500 @th,800,8 set 0xff";

const KEPT: &str = "{backends: ['10.40.1.10:8080'], masquerade: false}";
const HIDDEN: &str = "{backends: ['10.40.1.10:8080'], masquerade: true}";
const BOTH: &str = "{backends: ['10.40.1.10:8080', '10.40.2.10:8080']}";
const STICKY: &str = "{backends: ['10.40.1.10:8080', '10.40.2.10:8080'], sticky: true}";
const EXPECTATIONS: [&str; 7] = [KEPT, HIDDEN, BOTH, STICKY, "reject", "drop", "untouched"];

/// The rules of each proxy, and the expectations that it fulfils, behind a protocol if only with
/// that one; it fails all others. What nobody answers fulfils `drop`.
#[rstest]
#[case::none(&[], &["untouched", "drop"])]
#[case::translates(&[TO_POD], &[KEPT, STICKY])]
#[case::masquerades(&[TO_POD, MASQUERADE], &[HIDDEN, STICKY])]
#[case::spreads(&[TO_BOTH], &[BOTH])]
#[case::answers_from_elsewhere(&[ONE_WAY], &["TCP drop"])]
#[case::drops(&[DROP], &["drop"])]
#[case::refuses(&[REFUSE], &["reject"])]
#[case::prohibits(&[PROHIBIT], &[])]
#[case::changes_the_port(&[OTHER_PORT], &["drop"])]
fn only_the_right_proxy_fulfils_expectations(#[case] chains: &[&str], #[case] fulfilled: &[&str]) {
    let flow = |protocol: &str, expect: &str| {
        format!(
            "{{from: 203.0.113.9, to: '198.51.100.1:8080', protocol: {protocol}, expect: {expect}}}"
        )
    };
    let mut wanted = BTreeMap::new();
    let mut flows = Vec::new();
    for protocol in ["TCP", "UDP", "SCTP"] {
        for expect in EXPECTATIONS {
            let only = format!("{protocol} {expect}");
            let is_wanted = fulfilled.iter().any(|one| [expect, &only].contains(one));
            wanted.insert((protocol, expect), is_wanted);
            flows.push(((protocol, expect), flow(protocol, expect)));
        }
    }
    let seen: BTreeMap<_, _> = checked(chains, &flows).into_iter().collect();
    assert_eq!(seen, wanted);
}

#[test]
fn a_damaged_payload_fails_the_flow() {
    let flow = "{from: 203.0.113.9, to: '10.40.1.10:8080', protocol: UDP, expect: {backends: ['10.40.1.10:8080']}}";
    let flows = [((), flow.to_owned())];
    assert_eq!(checked(&[], &flows), [((), true)]);
    assert_eq!(checked(&[DAMAGE], &flows), [((), false)]);
}

/// Tries each flow on a node with these chains of nft; returns whether it was as expected.
fn checked<K: Copy>(chains: &[&str], flows: &[(K, String)]) -> Vec<(K, bool)> {
    let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
    let layout = Layout {
        node: vec![ip("192.168.40.2")],
        pods: vec![vec![ip("10.40.1.10")]],
        remote: [ip("10.40.2.10")].into(),
        outside: [ip("203.0.113.9")].into(),
        unowned: [ip("198.51.100.1")].into(),
    };
    let topology = Topology::build(layout, Plumbing::Routed).expect("a node");
    // One flow after the other is refused: no limit for ICMP errors.
    let unlimited = topology.node.set(&[("ipv4/icmp_ratemask", "0")]);
    unlimited.expect("a kernel parameter");
    let chains = chains.iter().enumerate();
    let chains = chains.map(|(n, chain)| format!("chain c{n} {{\n{chain}\n}}\n"));
    let chains: String = chains.collect();
    let table = format!("table inet lab {{\n{chains}}}\n");
    let fed = topology.node.feed("nft", &["-f", "-"], &table);
    fed.expect("rules");
    let endpoints = cluster::endpoints(ENDPOINTS, "node-a").expect("endpoints");
    let cgroup = Cgroup::new().expect("a cgroup");
    let host = SocketBalancing::Host;
    let mut tried = Flows::new(&topology, &cgroup, &endpoints, host).expect("servers");
    let mut seen = Vec::new();
    for (key, flow) in flows {
        let case = format!(
            "{{case: x, node: {{name: node-a, ips: [192.168.40.2]}}, steps: [{{flows: [{flow}]}}]}}"
        );
        let case = Case::parse(&case).expect("a flow");
        let found = tried.check(&case.steps[0].flows[0]);
        let found = found.expect("the flow is tried");
        seen.push((*key, found.is_ok()));
    }
    seen
}
