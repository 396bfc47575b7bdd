// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of the lab's clients and servers. nft rules on the simulated node imitate right and wrong
//! proxies: each check of conformance must be able to fail.

mod damaged;
mod refused;
mod translated;
mod untouched;

use std::{collections::BTreeSet, sync::atomic::AtomicBool};

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
};

use crate::reach::layout;

static NOT_CANCELLED: AtomicBool = AtomicBool::new(false);

const ENDPOINTS: &str = "
kind: EndpointSlice
metadata: {name: web}
ports: [{port: 8080}, {port: 8080, protocol: UDP}, {port: 8080, protocol: SCTP}]
endpoints: [{addresses: [10.40.1.10], nodeName: node-a}, {addresses: [10.40.2.10]}]
";

/// Returns [`Flows`] that expect pods' connections to be translated per packet, not at sockets.
fn flows_of<'a>(
    topology: &'a Topology,
    cgroup: &'a Cgroup,
    endpoints: &BTreeSet<Endpoint>,
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

/// Checks whether a flow is as expected on a node with these nft rules.
fn check(plumbing: Plumbing, rules: &str, flow: &str) -> Result<(), String> {
    let topology = Topology::build(layout(), plumbing).expect("topology");
    if !rules.is_empty() {
        // `rules` has one chain a line; nft 1.0.6 needs the closing brace on its own line.
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

/// Returns a chain whose rule changes forwarded packets without conntrack.
fn mangle(rule: &str) -> String {
    format!("chain mangle {{ type filter hook forward priority -150; {rule} }}")
}

const TO_POD: &str = "ip daddr 198.51.100.1 dnat ip to 10.40.1.10";

fn flow(protocol: &str, expect: &str) -> String {
    format!(
        "{{from: 203.0.113.9, to: '198.51.100.1:8080', protocol: {protocol}, expect: {expect}}}"
    )
}
