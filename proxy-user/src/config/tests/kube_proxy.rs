// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Configuration files held against what a real kube-proxy makes of them (proxy-user/kube-proxy), key by key.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value as Json;

use super::super::{Config, Mode, RawConfig, document, table};

pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("kube-proxy")
}

/// The folders of kube-proxy's answers, one for each version.
pub(crate) fn versions() -> Vec<PathBuf> {
    let all = fs::read_dir(folder()).expect("the folder");
    let all = all.map(|entry| entry.expect("an entry").path());
    let versions: Vec<_> = all.filter(|path| path.is_dir()).collect();
    assert!(!versions.is_empty());
    versions
}

/// Every configuration file, by name.
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

/// The values of a document by their paths. An empty one is as good as none.
fn leaves(path: &str, value: &Json, into: &mut BTreeMap<String, String>) {
    match value {
        Json::Object(fields) => {
            for (name, value) in fields {
                leaves(&table::join(path, name), value, into);
            }
        }
        Json::Null => {}
        Json::Array(items) if items.is_empty() => {}
        Json::String(text) if text.is_empty() => {}
        Json::String(text) => _ = into.insert(path.to_owned(), text.clone()),
        other => _ = into.insert(path.to_owned(), other.to_string()),
    }
}

/// The values of keys that kube-proxy has and that mean something here.
fn common(document: &Json, mode: Mode) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    leaves("", document, &mut all);
    // KUBE: the section of another mode is not in force.
    let other = match mode {
        Mode::Nftables => "iptables",
        Mode::Iptables | Mode::Ipvs => "nftables",
    };
    let unused: Vec<_> = table::unused()
        .flat_map(|unused| unused.keys)
        .copied()
        .collect();
    let left_out = ["portolan", other];
    all.retain(|key, _| {
        let is_within = |path: &&str| table::is_within(key, path);
        !unused.iter().any(is_within) && !left_out.iter().any(is_within)
    });
    all
}

/// The keys whose values in force are not those of kube-proxy's answer; fails for one that is not in the table of differences.
pub(crate) fn differences(name: &str, config: &Config, theirs: &str) -> BTreeSet<&'static str> {
    let ours = common(&document(config).expect("written"), config.mode);
    let theirs: Json = serde_saphyr::from_str(theirs).expect("YAML");
    let theirs = common(&theirs, config.mode);
    assert!(ours.len() > 10, "{name}: {ours:?}");
    let keys: BTreeSet<_> = ours.keys().chain(theirs.keys()).collect();
    let differ = keys
        .into_iter()
        .filter(|key| ours.get(*key) != theirs.get(*key));
    let known = differ.map(|key| {
        let known = table::DIFFERENCES.iter().find(|known| known.key == key);
        let (ours, theirs) = (ours.get(key), theirs.get(key));
        let known =
            known.unwrap_or_else(|| panic!("{name}: {key} is {ours:?}, kube-proxy's {theirs:?}"));
        known.key
    });
    known.collect()
}

#[test]
fn every_setting_in_force_is_kube_proxys_or_in_the_table_of_differences() {
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
        }
        let all: BTreeSet<_> = table::DIFFERENCES.iter().map(|known| known.key).collect();
        assert_eq!(met, all, "a difference that no file shows");
        assert!(compared > 15, "{compared}");
    }
}

#[test]
fn the_kube_proxy_is_of_the_kubernetes_that_is_built_here() {
    let go_mod = folder().join("../../xtask/go/kubernetes/go.mod");
    let go_mod = fs::read_to_string(go_mod).expect("Go's list of modules");
    let mut words = go_mod.split_whitespace();
    words.find(|word| *word == "k8s.io/kubernetes");
    let version = words.next().expect("its version");
    let known = versions().iter().any(|folder| folder.ends_with(version));
    assert!(known, "renew it for {version} with cargo xtask kube-proxy");
}

#[test]
fn what_kube_proxy_refuses_is_refused_and_nothing_else() {
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

#[test]
fn every_key_of_kube_proxy_is_known() {
    for version in versions() {
        for file in files().into_keys() {
            let Ok(theirs) = fs::read_to_string(version.join(&file).with_extension("yaml")) else {
                continue;
            };
            // Their answer is a file, too: with every key that they have.
            let config = RawConfig::parse(&file, &theirs).and_then(RawConfig::check);
            let config = config.unwrap_or_else(|error| panic!("{file}: {error}"));
            assert_eq!(config.ignored, []);
        }
    }
}
