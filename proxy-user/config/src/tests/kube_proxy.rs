// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares files key by key with what a real kube-proxy makes of them (proxy-user/kube-proxy).

use std::{collections::BTreeSet, fs, path::Path};

use crate::{
    RawConfig, table,
    testing::{compare, folder, versions},
};

#[test]
fn settings_in_force_equal_kube_proxys_except_listed_differences() {
    let known: BTreeSet<_> = table::DIFFERENCES.iter().map(|(key, _)| *key).collect();
    let settings = |path: &Path| RawConfig::read(path)?.check();
    for version in compare("yaml", |path| {
        settings(path).map_err(|error| error.to_string())
    }) {
        assert_eq!(version.differences, known, "one that no file shows");
        let (taken, refused) = (version.taken, version.refused);
        assert!(taken > 15 && refused > 9, "{taken} {refused}");
    }
}

#[test]
fn kube_proxys_settings_are_recorded_for_the_version_in_go_mod() {
    let go_mod = folder().join("../../xtask/go/kubernetes/go.mod");
    let go_mod = fs::read_to_string(go_mod).expect("Go's list of modules");
    let mut words = go_mod.split_whitespace();
    words.find(|word| *word == "k8s.io/kubernetes");
    let version = words.next().expect("its version");
    let known = versions().iter().any(|folder| folder.ends_with(version));
    assert!(known, "renew it for {version} with cargo xtask kube-proxy");
}
