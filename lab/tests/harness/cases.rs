// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of the conformance cases' parser: it reads the complete format, and errors name everything
//! that is not in it.

use std::{path::Path, time::Duration};

use lab::{
    cases::{
        cluster::{self, ClusterState},
        format::{Case, Expect, SourcePorts},
        hosts::hosts,
        parse::files_in,
    },
    node::layout::Host,
};
use proxy_common::Protocol;
use rstest::rstest;

use super::reach::ip;

const WHOLE: &str = r#"
case: whole
about: Every field of the format.
features: [a, b]
node:
  name: node-a
  ips: [192.168.40.2, 192.168.41.2, "fd00:c0::2"]
  labels: {topology.kubernetes.io/zone: "zone: a"}
  podCIDRs: [10.40.0.0/16, "fd00:40::/48"]
config: {masqueradeAll: true, nodePortAddresses: [primary], localDetection: none}
steps:
  - apply: |
      kind: Service
      metadata: {name: web}
      ---
      # nothing but a comment
      ---
      kind: EndpointSlice
      metadata: {name: web-1, namespace: shop}
      ports: [{name: http, port: 8080}, {name: dns, port: 53, protocol: UDP}, {name: any}]
      endpoints:
        - {addresses: [10.40.1.10], nodeName: node-a}
        - {addresses: [10.40.2.10], nodeName: node-b}
        - {addresses: [192.168.40.2], nodeName: node-a}
        - {addresses: [web.example]}
  - delete: [Service/default/web]
    flows:
      - {from: 10.40.1.200, to: "172.30.0.1:80", expect: reject}
      - {from: 203.0.113.9, to: "172.30.0.1:80", protocol: SCTP, expect: drop, repeat: 3}
      - {from: "fd00:40::9", to: "[fd00:30::1]:80", protocol: UDP, expect: untouched, wait: 1.5s, source_ports: same}
      - {from: 203.0.113.9, to: "192.168.40.2:80", expect: {backends: ["10.40.1.10:8080"], masquerade: true, sticky: true}}
      - {from: 203.0.113.9, expect_health: {port: 31000, status: 503}}
"#;

#[test]
fn the_fields_of_a_case_file_are_parsed() {
    let case = Case::parse(WHOLE).expect("a case");
    assert_eq!(case.node.labels["topology.kubernetes.io/zone"], "zone: a");
    assert_eq!(case.config.masquerade_all, Some(true));
    assert_eq!(
        case.config.node_port_addresses.as_deref(),
        Some(&["primary".to_owned()][..])
    );
    let flows = &case.steps[1].flows;
    assert_eq!(flows[0].protocol, Protocol::TCP);
    assert_eq!(
        (&flows[1].expect, flows[1].repeat),
        (&Some(Expect::Drop), Some(3))
    );
    assert_eq!(flows[2].wait, Some(Duration::from_millis(1500)));
    assert_eq!(flows[2].source_ports, Some(SourcePorts::Same));
    let Some(Expect::Backends(expected)) = &flows[3].expect else {
        panic!("{:?}", flows[3])
    };
    assert!(expected.sticky && expected.masquerade == Some(true));
    assert_eq!(
        flows[4].expect_health.map(|health| health.status),
        Some(503)
    );
}

#[rstest]
#[case("case: whole", "case: whole\nkinds: 1", "kinds")]
#[case("labels:", "lables:", "lables")]
#[case("masqueradeAll", "masqueradeSome", "masqueradeSome")]
#[case("expect: reject", "expects: reject", "expects")]
#[case("expect: reject", "expect: accept", "accept")]
#[case("masquerade: true", "masquerading: true", "masquerading")]
#[case("status: 503", "state: 503", "state")]
#[case("wait: 1.5s", "wait: soon", "soon")]
#[case("protocol: UDP, expect", "protocol: ICMP, expect", "ICMP")]
#[case("source_ports: same", "source_ports: other", "other")]
#[case(
    "to: \"172.30.0.1:80\", expect: reject",
    "expect: reject",
    "expect_health"
)]
#[case("to: \"[fd00:30::1]:80\"", "to: \"172.30.0.1:80\"", "families")]
#[case(
    "ips: [192.168.40.2, 192.168.41.2, \"fd00:c0::2\"]",
    "ips: []",
    "node.ips"
)]
#[case("repeat: 3", "repeat: 0", "repeat: 0")]
fn the_error_for_an_invalid_case_file_names_the_wrong_field_or_value(
    #[case] right: &str,
    #[case] wrong: &str,
    #[case] named: &str,
) {
    assert!(WHOLE.contains(right), "{right}");
    let error = Case::parse(&WHOLE.replacen(right, wrong, 1)).expect_err("an error");
    let error = format!("{error:#}");
    assert!(error.contains(named), "{error}");
}

#[test]
fn all_conformance_cases_can_be_parsed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance/cases");
    for file in files_in(&folder).expect("case files") {
        Case::read(&file).expect("a case");
    }
}

#[test]
fn a_case_with_another_name_than_its_file_is_rejected() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("other.yaml");
    std::fs::write(&file, WHOLE).expect("write");
    let error = Case::read(&file).expect_err("two names").to_string();
    assert!(
        error.contains("other.yaml") && error.contains("whole"),
        "{error}"
    );
}

#[test]
fn addresses_of_a_case_are_assigned_to_pods_node_remote_outside_or_nowhere() {
    let case = Case::parse(WHOLE).expect("a case");
    let apply = case.steps[0].apply.as_deref().expect("objects");
    let endpoints = cluster::endpoints(apply, "node-a").expect("endpoints");
    assert_eq!(
        endpoints.len(),
        6,
        "three addresses, two numbered ports: {endpoints:?}"
    );
    let layout = hosts(&case, &endpoints);
    let owner = |text| layout.owner(ip(text));
    assert!(
        matches!(owner("10.40.1.200"), Some(Host::Pod(_))),
        "a client in the pod range"
    );
    assert!(
        matches!(owner("10.40.1.10"), Some(Host::Pod(_))),
        "an endpoint on this node"
    );
    assert_eq!(
        owner("10.40.2.10"),
        Some(Host::Remote),
        "an endpoint on another"
    );
    assert_eq!(owner("192.168.40.2"), Some(Host::Node));
    assert_eq!(owner("127.0.0.1"), Some(Host::Node));
    assert_eq!(owner("203.0.113.9"), Some(Host::Outside));
    assert_eq!(owner("172.30.0.1"), None);
    assert!(layout.unowned.contains(&ip("172.30.0.1")));
}

#[test]
fn objects_are_replaced_and_deleted_by_kind_namespace_and_name() {
    let case = Case::parse(WHOLE).expect("a case");
    let mut state = ClusterState::default();
    state
        .apply(case.steps[0].apply.as_deref().expect("objects"))
        .expect("apply");
    state
        .apply("kind: Service\nmetadata: {name: web, namespace: default}\nspec: {new: 1}")
        .expect("apply");
    let text = state.render(&case.node, 7);
    assert_eq!(text.matches("kind: Service").count(), 1);
    assert!(
        text.contains("new: 1") && text.contains(r#""resourceVersion":"7""#),
        "{text}"
    );
    assert!(
        text.contains("192.168.40.2") && !text.contains("192.168.41.2"),
        "InternalIPs only"
    );
    state.delete("Service/default/web").expect("delete");
    assert!(!state.render(&case.node, 8).contains("kind: Service"));
    let error = state
        .delete("Service/default/web")
        .expect_err("gone")
        .to_string();
    assert!(error.contains("Service/default/web"), "{error}");
}
