// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every kind of probe against a stand-in that does right and ones that do wrong, made of nft rules on
//! the simulated node: what conformance passes must be able to fail.

use std::{net::SocketAddr, sync::atomic::AtomicBool, time::Duration};

use proxy_common::Protocol;
use rstest::rstest;

use super::reach::layout;
use lab::{
    cases::{
        cluster::{self, Endpoint},
        flows::Flows,
        format::Case,
    },
    node::{
        cgroup::Cgroup,
        settings::SocketBalancing,
        topology::{Plumbing, Topology},
    },
    traffic::{clients::Client, probe::Outcome},
};

static NOT_CANCELLED: AtomicBool = AtomicBool::new(false);

const ENDPOINTS: &str = "
kind: EndpointSlice
metadata: {name: web}
ports: [{port: 8080}, {port: 8080, protocol: UDP}, {port: 8080, protocol: SCTP}]
endpoints: [{addresses: [10.40.1.10], nodeName: node-a}, {addresses: [10.40.2.10]}]
";

/// What probes pods' connections per packet.
fn flows_of<'a>(
    topology: &'a Topology,
    cgroup: &'a Cgroup,
    endpoints: &std::collections::BTreeSet<Endpoint>,
) -> Flows<'a> {
    Flows::new(
        topology,
        cgroup,
        endpoints,
        SocketBalancing::Host,
        &NOT_CANCELLED,
    )
    .expect("servers")
}

/// Whether a flow holds on a node with these rules.
fn verdict(plumbing: Plumbing, rules: &str, flow: &str) -> Result<(), String> {
    let topology = Topology::build(layout(), plumbing).expect("topology");
    if !rules.is_empty() {
        // One chain a line; nft 1.0.6 wants the closing brace on a line of its own.
        let chains: Vec<_> = rules
            .lines()
            .map(|chain| chain.trim_end_matches('}'))
            .collect();
        let table = format!("table inet lab {{\n{}\n}}\n}}\n", chains.join("\n}\n"));
        topology
            .node
            .feed("nft", &["-f", "-"], &table)
            .expect("rules");
    }
    let endpoints = cluster::endpoints(ENDPOINTS, "node-a").expect("endpoints");

    let cgroup = Cgroup::new().expect("a cgroup");
    let mut flows = flows_of(&topology, &cgroup, &endpoints);
    let case = format!(
        "{{case: x, node: {{name: node-a, ips: [192.168.40.2]}}, steps: [{{flows: [{flow}]}}]}}"
    );
    let case = Case::parse(&case).expect("a flow");
    flows
        .check(&case.steps[0].flows[0])
        .expect("the flow is tried")
}

fn prerouting(rule: &str) -> String {
    format!("chain before {{ type nat hook prerouting priority -100; {rule} }}")
}

fn postrouting(rule: &str) -> String {
    format!("chain after {{ type nat hook postrouting priority 100; {rule} }}")
}

fn forward(rule: &str) -> String {
    format!("chain through {{ type filter hook forward priority 0; {rule} }}")
}

/// Changes packets without a flow's knowledge, after routing.
fn mangle(rule: &str) -> String {
    format!("chain mangle {{ type filter hook forward priority -150; {rule} }}")
}

const TO_POD: &str = "ip daddr 198.51.100.1 dnat ip to 10.40.1.10";
const TO_BOTH: &str =
    "ip daddr 198.51.100.1 dnat ip to numgen random mod 2 map { 0: 10.40.1.10, 1: 10.40.2.10 }";
const MASQUERADE: &str = "ip daddr { 10.40.1.10, 10.40.2.10 } masquerade";

fn flow(protocol: &str, expect: &str) -> String {
    format!(
        "{{from: 203.0.113.9, to: '198.51.100.1:8080', protocol: {protocol}, expect: {expect}}}"
    )
}

#[rstest]
fn a_translated_flow_is_told_by_who_answers_and_what_it_sees(
    #[values(Plumbing::Bridge, Plumbing::Routed)] plumbing: Plumbing,
    #[values("TCP", "UDP", "SCTP")] protocol: &str,
) {
    let judged = |rules: &str, expect: &str| verdict(plumbing, rules, &flow(protocol, expect));
    let kept = "{backends: ['10.40.1.10:8080'], masquerade: false}";
    let masqueraded = "{backends: ['10.40.1.10:8080'], masquerade: true}";
    let dnat = prerouting(TO_POD);
    assert_eq!(judged(&dnat, kept), Ok(()));
    assert!(judged(&dnat, masqueraded).is_err());
    let both = format!("{dnat}\n{}", postrouting(MASQUERADE));
    assert_eq!(judged(&both, masqueraded), Ok(()));
    assert!(judged(&both, kept).is_err());
    let other = "{backends: ['10.40.2.10:8080']}";
    assert!(
        judged(&dnat, other)
            .expect_err("the other one")
            .contains("not listed")
    );
    assert!(
        judged("", kept)
            .expect_err("nobody serves")
            .contains("no answer")
    );
}

#[rstest]
#[case("{backends: ['10.40.1.10:8080', '10.40.2.10:8080']}", TO_BOTH, true)]
#[case("{backends: ['10.40.1.10:8080', '10.40.2.10:8080']}", TO_POD, false)]
#[case(
    "{backends: ['10.40.1.10:8080', '10.40.2.10:8080'], sticky: true}",
    TO_POD,
    true
)]
#[case(
    "{backends: ['10.40.1.10:8080', '10.40.2.10:8080'], sticky: true}",
    TO_BOTH,
    false
)]
fn spreading_is_told_from_sticking(#[case] expect: &str, #[case] rule: &str, #[case] holds: bool) {
    let found = verdict(Plumbing::Routed, &prerouting(rule), &flow("TCP", expect));
    assert_eq!(found.is_ok(), holds, "{found:?}");
}

#[rstest]
#[case("icmpx type port-unreachable", "reject")]
#[case("icmpx type host-unreachable", "neither")]
#[case("icmpx type admin-prohibited", "neither")]
fn a_reject_is_port_unreachable_and_nothing_else(
    #[values("TCP", "UDP", "SCTP")] protocol: &str,
    #[case] with: &str,
    #[case] right: &str,
) {
    let rules = forward(&format!("ip daddr 198.51.100.1 reject with {with}"));
    for expect in ["reject", "drop", "untouched"] {
        let found = verdict(Plumbing::Routed, &rules, &flow(protocol, expect));
        assert_eq!(found.is_ok(), expect == right, "{expect}: {found:?}");
    }
}

#[test]
fn a_tcp_reset_is_a_reject() {
    let rules = forward("ip daddr 198.51.100.1 tcp dport 8080 reject with tcp reset");
    assert_eq!(
        verdict(Plumbing::Bridge, &rules, &flow("TCP", "reject")),
        Ok(())
    );
    assert!(verdict(Plumbing::Bridge, &rules, &flow("TCP", "drop")).is_err());
}

#[rstest]
fn a_drop_is_told_from_what_passes_and_from_a_reject(
    #[values("TCP", "UDP", "SCTP")] protocol: &str,
) {
    let rules = forward("ip daddr 198.51.100.1 drop");
    for (expect, holds) in [("drop", true), ("reject", false), ("untouched", false)] {
        let found = verdict(Plumbing::Routed, &rules, &flow(protocol, expect));
        assert_eq!(found.is_ok(), holds, "{expect}: {found:?}");
    }
    assert!(
        verdict(
            Plumbing::Routed,
            &prerouting(TO_POD),
            &flow(protocol, "drop")
        )
        .is_err()
    );
}

#[rstest]
#[case::nothing_done("", true)]
#[case::translated(
    "chain x { type nat hook prerouting priority -100; ip daddr 198.51.100.1 dnat ip to 10.40.1.10 }",
    false
)]
#[case::another_destination(
    "chain x { type filter hook forward priority -150; ip daddr set 198.51.100.9 }",
    false
)]
#[case::another_source(
    "chain x { type nat hook postrouting priority 100; masquerade }",
    false
)]
#[case::another_port(
    "chain x { type filter hook forward priority -150; ip daddr 198.51.100.1 th dport set 8081 }",
    false
)]
#[case::swallowed("chain x { type filter hook forward priority 0; drop }", false)]
fn what_nobody_owns_is_untouched_only_if_it_leaves_as_it_came(
    #[values("TCP", "UDP", "SCTP")] protocol: &str,
    #[case] rules: &str,
    #[case] holds: bool,
) {
    let found = verdict(Plumbing::Routed, rules, &flow(protocol, "untouched"));
    assert_eq!(found.is_ok(), holds, "{found:?}");
}

#[rstest]
#[case::nothing_done("", true)]
#[case::translated(
    "chain x { type nat hook prerouting priority -100; ip daddr 192.168.40.2 th dport 30000 dnat ip to 10.40.1.10:8080 }",
    false
)]
#[case::another_port(
    "chain x { type nat hook prerouting priority -100; ip daddr 192.168.40.2 th dport 30000 redirect to 30001 }",
    false
)]
#[case::another_source(
    "chain x { type nat hook input priority 100; snat ip to 10.9.9.9 }",
    false
)]
#[case::swallowed(
    "chain x { type filter hook input priority 0; th dport 30000 drop }",
    false
)]
fn what_the_node_owns_is_untouched_only_if_its_listener_sees_it_as_sent(
    #[values("TCP", "UDP")] protocol: &str,
    #[case] rules: &str,
    #[case] holds: bool,
) {
    let rules = rules.replace("th dport", &format!("{} dport", protocol.to_lowercase()));
    let flow = format!(
        "{{from: 203.0.113.9, to: '192.168.40.2:30000', protocol: {protocol}, expect: untouched}}"
    );
    let found = verdict(Plumbing::Bridge, &rules, &flow);
    assert_eq!(found.is_ok(), holds, "{found:?}");
}

#[test]
fn an_answer_from_another_address_is_noticed() {
    // Only the way there is translated, without a flow's memory: the answer comes from the pod itself.
    let there = "chain x { type filter hook prerouting priority -150; ip daddr 198.51.100.1 ip daddr set 10.40.1.10 }";
    let expect = "{backends: ['10.40.1.10:8080'], masquerade: false}";
    let seen = verdict(Plumbing::Routed, there, &flow("UDP", expect)).expect_err("from elsewhere");
    assert!(
        seen.contains("an answer from 10.40.1.10:8080 instead of 198.51.100.1:8080"),
        "{seen}"
    );
    assert!(verdict(Plumbing::Routed, there, &flow("TCP", expect)).is_err());
    let seen = verdict(Plumbing::Routed, there, &flow("SCTP", expect)).expect_err("from elsewhere");
    assert!(seen.contains("instead of"), "{seen}");
}

#[test]
fn a_wrong_sctp_checksum_on_arrival_is_noticed() {
    // A port changed without the checksum.
    let port = mangle("ip daddr 10.40.1.10 ip protocol sctp @th,16,16 set 8080");
    let flow = "{from: 203.0.113.9, to: '10.40.1.10:8081', protocol: SCTP, expect: {backends: ['10.40.1.10:8080']}}";
    let seen = verdict(Plumbing::Routed, &port, flow).expect_err("a wrong checksum");
    assert!(seen.contains("no answer"), "{seen}");
    let back = mangle("ip saddr 10.40.1.10 ip protocol sctp @th,0,16 set 8080");
    let seen = verdict(Plumbing::Routed, &back, &flow.replace("8081", "8080"));
    assert_eq!(seen, Ok(()), "a port that stays leaves the checksum right");
}

#[test]
fn a_damaged_payload_is_noticed() {
    let rules = mangle("ip daddr 10.40.1.10 udp length > 500 @th,800,8 set 0xff");
    let flow = "{from: 203.0.113.9, to: '10.40.1.10:8080', protocol: UDP, expect: {backends: ['10.40.1.10:8080']}}";
    assert!(verdict(Plumbing::Routed, &rules, flow).is_err());
    assert_eq!(verdict(Plumbing::Routed, "", flow), Ok(()));
}

#[test]
fn one_source_port_serves_every_connection_of_a_flow_that_says_so() {
    let topology = Topology::build(layout(), Plumbing::Bridge).expect("topology");
    let endpoints: std::collections::BTreeSet<Endpoint> =
        cluster::endpoints(ENDPOINTS, "node-a").expect("endpoints");

    let cgroup = Cgroup::new().expect("a cgroup");
    let mut flows = flows_of(&topology, &cgroup, &endpoints);
    for protocol in ["TCP", "UDP", "SCTP"] {
        let text = format!(
            "{{case: x, node: {{name: node-a, ips: [192.168.40.2]}}, steps: [{{flows: [
             {{from: 203.0.113.9, to: '10.40.1.10:8080', protocol: {protocol}, source_ports: same,
               repeat: 30, expect: {{backends: ['10.40.1.10:8080'], masquerade: false}}}}]}}]}}"
        );
        let case = Case::parse(&text).expect("a flow");
        for _ in 0..3 {
            assert_eq!(
                flows.check(&case.steps[0].flows[0]).expect("tried"),
                Ok(()),
                "{protocol}"
            );
        }
    }
}

#[rstest]
fn silence_is_told_when_the_clients_patience_is_over(
    #[values(Protocol::TCP, Protocol::UDP, Protocol::SCTP)] protocol: Protocol,
) {
    let topology = Topology::build(layout(), Plumbing::Routed).expect("topology");
    let mut client = Client::new(
        &topology.outside,
        "203.0.113.9".parse().expect("an address"),
    );
    client.patience = Duration::from_millis(30);
    let nobody: SocketAddr = "198.51.100.1:80".parse().expect("an address");
    let attempt = client.call(protocol, nobody, 0).expect("call");
    assert_eq!(attempt.outcome, Outcome::Silence);
    assert!(
        attempt.after < Duration::from_millis(500),
        "{:?}",
        attempt.after
    );
}
