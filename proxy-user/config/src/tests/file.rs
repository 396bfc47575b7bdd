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
const INVALID: &str = include_str!("invalid.txt");

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
const WRONG_TYPES: &str = include_str!("wrong_types.txt");

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
