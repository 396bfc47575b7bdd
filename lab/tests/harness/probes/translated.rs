// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests that the lab's clients notice whether flows are translated correctly, wrongly or not at
//! all.

use std::collections::BTreeSet;

use lab::{
    cases::{
        cluster::{self, Endpoint},
        format::Case,
    },
    node::{
        cgroup::Cgroup,
        topology::{Plumbing, Topology},
    },
};
use rstest::rstest;

use super::{ENDPOINTS, TO_POD, check, flow, flows_of, postrouting, prerouting};
use crate::reach::layout;

const TO_BOTH: &str =
    "ip daddr 198.51.100.1 dnat ip to numgen random mod 2 map { 0: 10.40.1.10, 1: 10.40.2.10 }";
const MASQUERADE: &str = "ip daddr { 10.40.1.10, 10.40.2.10 } masquerade";

#[rstest]
fn nat_is_checked_by_the_answering_backend_and_the_source_it_sees(
    #[values(Plumbing::Bridge, Plumbing::Routed)] plumbing: Plumbing,
    #[values("TCP", "UDP", "SCTP")] protocol: &str,
) {
    let checked = |rules: &str, expect: &str| check(plumbing, rules, &flow(protocol, expect));
    let kept = "{backends: ['10.40.1.10:8080'], masquerade: false}";
    let masqueraded = "{backends: ['10.40.1.10:8080'], masquerade: true}";
    let dnat = prerouting(TO_POD);
    assert_eq!(checked(&dnat, kept), Ok(()));
    assert!(checked(&dnat, masqueraded).is_err());
    let both = format!("{dnat}\n{}", postrouting(MASQUERADE));
    assert_eq!(checked(&both, masqueraded), Ok(()));
    assert!(checked(&both, kept).is_err());
    let other = "{backends: ['10.40.2.10:8080']}";
    assert!(
        checked(&dnat, other)
            .expect_err("the other one")
            .contains("not listed")
    );
    assert!(
        checked("", kept)
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
fn sticky_and_spread_flows_are_distinguished(
    #[case] expect: &str,
    #[case] rule: &str,
    #[case] holds: bool,
) {
    let found = check(Plumbing::Routed, &prerouting(rule), &flow("TCP", expect));
    assert_eq!(found.is_ok(), holds, "{found:?}");
}

#[test]
fn with_source_ports_same_all_connections_use_one_port() {
    let topology = Topology::build(layout(), Plumbing::Bridge).expect("topology");
    let endpoints: BTreeSet<Endpoint> = cluster::endpoints(ENDPOINTS, "node-a").expect("endpoints");

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
