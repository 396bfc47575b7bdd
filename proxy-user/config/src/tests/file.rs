// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests faulty and damaged files, and the file that kubeadm writes.

use std::fs;

use control::{
    object::Warning,
    testing::{damaged, rows},
};
use proptest::prelude::*;
use rstest::rstest;

use super::{
    super::{Config, render},
    config, whole,
};
use crate::testing::folder;

/// Settings, and below each the error.
const INVALID: &str = r#"
nftables: {masqueradeBit: 32}
  | nftables.masqueradeBit: "32" is not a bit number; use 0 to 31 (14 is the default)
{mode: ipvs, iptables: {masqueradeBit: -1}}
  | iptables.masqueradeBit: "-1" is not a bit number; use 0 to 31 (14 is the default)
clusterCIDR: 10.40.0.0
  | clusterCIDR: "10.40.0.0" is not an address range; write it like 10.244.0.0/16
clusterCIDR: 10.0.0.0/24,10.0.1.0/24,10.0.2.0/24,10.0.3.0/24,10.0.4.0/24
  | clusterCIDR: "10.0.0.0/24,10.0.1.0/24,10.0.2.0/24,10.0.3.0/24,10.0.4.0/24" has more than 4 ranges of one family; merge some into a larger one
detectLocalMode: BridgeInterface
  | detectLocalMode: "BridgeInterface" needs detectLocal.bridgeInterface to be set; set it or use another mode
{detectLocalMode: InterfaceNamePrefix, detectLocal: {bridgeInterface: cni0}}
  | detectLocalMode: "InterfaceNamePrefix" needs detectLocal.interfaceNamePrefix to be set; set it or use another mode
mode: userspace
  | mode: "userspace" is no mode; leave it out, or use iptables or nftables for what differs in them
nodePortAddresses: [primary, 10.0.0.0/8]
  | nodePortAddresses: "primary,10.0.0.0/8" mixes primary with ranges; use primary alone or ranges alone
nodePortAddresses: [eth0]
  | nodePortAddresses: "eth0" is not an address range; write it like 10.244.0.0/16
conntrack: {udpTimeout: soon}
  | conntrack.udpTimeout: "soon" is not a duration; write it like 24h0m0s or 120s, or 0s for the default
conntrack: {udpTimeout: -5s}
  | conntrack.udpTimeout: "-5s" is not a duration; write it like 24h0m0s or 120s, or 0s for the default
nodePortAddresses: ['']
  | nodePortAddresses: "" is not an address range; write it like 10.244.0.0/16
nodePortAddresses: [10.0.0.0/8, '']
  | nodePortAddresses: "" is not an address range; write it like 10.244.0.0/16
clusterCIDR: '10.0.0.0/8,'
  | clusterCIDR: "" is not an address range; write it like 10.244.0.0/16
detectLocal: {clusterCIDRs: ['']}
  | detectLocal.clusterCIDRs: "" is not an address range; write it like 10.244.0.0/16
portolan: {interfaces: [eth0, '']}
  | portolan.interfaces: "" matches nothing; remove it
metricsBindAddress: '[::1]'
  | metricsBindAddress: "[::1]" is not an IP address with or without a port; write it like [::1]:10249
healthzBindAddress: '[::]:http'
  | healthzBindAddress: "[::]:http" is not an IP address with or without a port; write it like [::]:10256
healthzBindAddress: localhost
  | healthzBindAddress: "localhost" is not an IP address with or without a port; write it like 0.0.0.0:10256
{bindAddress: '::', metricsBindAddress: '127.0.0.1:0'}
  | metricsBindAddress: "127.0.0.1:0" is not an IP address with or without a port; write it like [::1]:10249
bindAddress: eth0
  | bindAddress: "eth0" is not an IP address; write it like 0.0.0.0 or ::
portolan: {logLevel: 'portolan=loud'}
  | portolan.logLevel: "portolan=loud" is not a level; use error, warn, info, debug or trace, or a filter like warn,portolan_source=debug
portolan: {masqueradePorts: ['1-2', '3-4', '5-6']}
  | portolan.masqueradePorts: "1-2,3-4,5-6" is not one or two ranges; write it like [1024-29999, 61000-65535]
portolan: {masqueradePorts: [9-8]}
  | portolan.masqueradePorts: "9-8" is not a range of ports; write it like 1024-29999
portolan: {maps: {flows: 1}}
  | portolan.maps.flows: "1" is not between 16 and 67108864 entries; correct it
"#;

#[test]
fn an_invalid_values_error_has_key_value_and_remedy() {
    for [text, expected] in rows(INVALID) {
        assert_eq!(config(&text).expect_err("invalid").to_string(), expected);
    }
}

#[rstest]
#[case("metricsBindAddress: 10.0.0.1\nclusterCidr: 10.0.0.0/8\n", &[(2, "unknown key \"clusterCidr\" is ignored; correct it to \"clusterCIDR\", or remove it")])]
#[case("portolan:\n  maps:\n    flow: 3\n", &[(3, "unknown key \"portolan.maps.flow\" is ignored; correct it to \"portolan.maps.flows\", or remove it")])]
#[case("udpIdleTimeout: {a: [1, {b: c}]}\nhostnameOverride: a\n", &[(1, "unknown key \"udpIdleTimeout\" is ignored; remove it")])]
#[case("hostnameOverride: b\nhostnameOverride: a\n", &[(2, "hostnameOverride stands more than once; the last one holds, remove the others")])]
#[case("{}", &[])]
fn unknown_and_repeated_keys_give_warnings_and_the_rest_is_used(
    #[case] text: &str,
    #[case] expected: &[(u32, &str)],
) {
    let config = config(text).expect("valid");
    let expected: Vec<_> = expected
        .iter()
        .map(|(line, reason)| Warning {
            object: format!("configuration file portolan.yaml, line {line}"),
            reason: (*reason).to_owned(),
        })
        .collect();
    assert_eq!(config.ignored, expected);
    if text.contains("hostname") {
        assert_eq!(config.hostname_override.as_deref(), Some("a"));
    }
}

/// That nothing else of the first one is used either: `unknown-and-duplicate-keys.yaml`.
#[test]
fn of_a_section_that_stands_twice_only_the_lasts_unused_keys_are_listed() {
    let [used, unused] = [
        "iptables: {masqueradeBit: 3}\n",
        "iptables: {syncPeriod: 40s}\n",
    ];
    let listed = |one, other| config(&format!("{one}{other}")).expect("valid").unused;
    assert_eq!(listed(used, unused), ["iptables.syncPeriod"]);
    assert_eq!(listed(unused, used), [""; 0]);
    let last = config(&format!("{unused}{used}")).expect("valid");
    assert_eq!(last.marks.masquerade, 1 << 3);
}

const HEADER: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

#[test]
fn a_whole_file_that_cannot_be_used_is_refused_with_its_line() {
    let missing = "this is missing, without which no settings are read:";
    let api_version = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\n";
    let missing_both = format!("{missing} {}", api_version.trim());
    let missing_kind = format!("{missing} kind: KubeProxyConfiguration");
    let is_wanted = "a mapping is wanted in";
    for (text, line, expected) in [
        ("null\n", 1, &*missing_both),
        ("---\n", 1, &missing_both),
        (&format!("{api_version}mode: nftables\n"), 1, &missing_kind),
        (&format!("{api_version}kind:\n"), 1, &missing_kind),
        (
            &HEADER.replace("kubeproxy.config.k8s.io/v1alpha1", "v1"),
            1,
            "apiVersion is \"v1\" where",
        ),
        ("just text\n", 1, &format!("{is_wanted} `just text`")),
        ("- kind: KubeProxyConfiguration\n", 1, is_wanted),
        (
            &format!("# a comment\n---\n{HEADER}portolan:\n  forwarding: sideways\n"),
            6,
            "portolan.forwarding",
        ),
    ] {
        let error = whole(text).expect_err("refused").to_string();
        let begins = format!("configuration file portolan.yaml, line {line}: {expected}");
        assert!(error.starts_with(&begins), "{error}");
    }
}

#[rstest]
#[case::comment_and_directive(&format!("# settings\n%YAML 1.2\n---\n{HEADER}mode: nftables\n"))]
#[case::json(
    "\u{feff}{\"apiVersion\": \"kubeproxy.config.k8s.io/v1alpha1\", \"kind\": \"KubeProxyConfiguration\", \"mode\": \"nftables\"}"
)]
fn comments_directives_and_json_may_be_around_the_configuration(#[case] text: &str) {
    let expected = config("mode: nftables\n").expect("valid");
    assert_eq!(whole(text).expect("valid"), expected);
}

/// Settings with values of a wrong type and unknown words, and how the error begins.
const WRONG_TYPES: &str = r#"
nodePortAddresses: primary
  | nodePortAddresses cannot be "primary"; it takes: list of address ranges, or primary alone
nodePortAddresses: [10] | nodePortAddresses cannot be [10]; it takes: list of
hostnameOverride: 7 | hostnameOverride cannot be 7; it takes: node name
hostnameOverride: [a] | hostnameOverride cannot be ["a"]; it takes: node name
iptables: {masqueradeBit: x} | iptables.masqueradeBit cannot be "x"; it takes: bit number, 0 to 31
iptables: {masqueradeAll: 1} | iptables.masqueradeAll cannot be 1; it takes: true or false
portolan: {maps: {flows: {a: 1}}}
  | portolan.maps.flows cannot be {"a":1}; it takes: number of entries
iptables: {masqueradeAll: maybe}
  | iptables.masqueradeAll cannot be "maybe"; it takes: true or false
portolan: {socketBalancing: some}
  | portolan.socketBalancing: "some" is unknown; use all or host
kind: Service | kind is "Service" where KubeProxyConfiguration is wanted
portolan: [1] | a mapping is wanted in `portolan: [1]`
"#;

#[test]
fn a_value_of_a_wrong_type_or_an_unknown_word_is_refused_with_an_error_for_operators() {
    for [text, expected] in rows(WRONG_TYPES) {
        let error = config(&text).expect_err("refused").to_string();
        let begins = format!("configuration file portolan.yaml, line 1: {expected}");
        assert!(error.starts_with(&begins), "{error}");
    }
}

#[test]
fn the_file_that_kubeadm_writes_works_as_it_is() {
    let kubeadm = fs::read_to_string(folder().join("kubeadm.yaml")).expect("the file");
    let first = whole(&kubeadm).expect("valid");
    assert!(first.unused.is_empty(), "{:?}", first.unused);
    let other = kubeadm
        .replace("mode: \"\"\nnftables", "mode: ipvs\nnftables")
        .replace("scheduler: \"\"", "scheduler: rr")
        .replace("maxPerCore: null", "maxPerCore: 32768");
    let other = whole(&other).expect("valid");
    assert_eq!(other.unused, ["ipvs"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn a_damaged_file_is_read_or_refused(edits in prop::collection::vec(any::<(u16, u8, u8)>(), 1..6)) {
        let file = render(&Config::default()).expect("written");
        if let Err(error) = whole(&damaged(&file, &edits)) {
            let text = error.to_string();
            prop_assert!(!text.is_empty() && !text.contains('\n'), "{}", text);
        }
    }
}
