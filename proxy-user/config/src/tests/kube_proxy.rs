// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares configuration files key by key with what a real kube-proxy makes of them
//! (proxy-user/kube-proxy).

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use crate::{
    Config, RawConfig, table,
    testing::{differences, folder, versions},
};

/// Returns the settings of every configuration file, or why it is refused, by its name.
fn files() -> BTreeMap<String, Result<Config, String>> {
    let all = fs::read_dir(folder()).expect("the folder");
    let all = all.map(|entry| entry.expect("an entry").path());
    let files = all.filter(|path| path.extension().is_some_and(|ending| ending == "yaml"));
    let read = |path: &Path| RawConfig::read(path)?.check();
    files
        .map(|path| {
            let name = path.file_stem().expect("a name").to_string_lossy();
            (
                name.into_owned(),
                read(&path).map_err(|error| error.to_string()),
            )
        })
        .collect()
}

#[test]
fn settings_in_force_equal_kube_proxys_except_listed_differences() {
    for version in versions() {
        let mut met = BTreeSet::new();
        let mut compared = 0;
        for (name, config) in files() {
            let Ok(theirs) = fs::read_to_string(version.join(&name).with_extension("yaml")) else {
                continue;
            };
            let config = config.unwrap_or_else(|error| panic!("{name}: {error}"));
            met.append(&mut differences(&name, &config, &theirs));
            compared += 1;
            // kube-proxy's answer is also a configuration file, with every key that kube-proxy has.
            let answer = RawConfig::parse(&name, &theirs).and_then(RawConfig::check);
            let answer = answer.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(answer.ignored, [], "every key is known");
        }
        let all: BTreeSet<_> = table::DIFFERENCES.iter().map(|known| known.key).collect();
        assert_eq!(met, all, "a difference that no file shows");
        assert!(compared > 15, "{compared}");
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

#[test]
fn exactly_the_files_that_kube_proxy_refuses_are_refused() {
    for version in versions() {
        let mut refused = 0;
        for (name, config) in files() {
            let theirs = fs::read_to_string(version.join(&name).with_extension("refused"));
            match (config, theirs) {
                (Err(_), Ok(_)) => refused += 1,
                (Ok(_), Err(_)) => {}
                (Ok(_), Ok(theirs)) => panic!("{name} is taken; kube-proxy says {theirs}"),
                (Err(error), Err(_)) => panic!("{name} is refused: {error}; kube-proxy takes it"),
            }
        }
        assert!(refused > 9, "{refused}");
    }
}
