// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares settings with those that a real kube-proxy made of the same (proxy-user/kube-proxy).

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value as Json;

use crate::{Config, Mode, RawConfig, document, table};

/// Returns the folder of the configuration files given to kube-proxy, and of what it made of them.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../kube-proxy")
}

/// Returns the folders with what kube-proxy made of the files, one for each of its versions.
pub fn versions() -> Vec<PathBuf> {
    let all = fs::read_dir(folder()).expect("the folder");
    let all = all.map(|entry| entry.expect("an entry").path());
    let versions: Vec<_> = all.filter(|path| path.is_dir()).collect();
    assert!(!versions.is_empty());
    versions
}

/// Collects the values of a document, but empty ones, by their paths, like `conntrack.min`.
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

/// Returns the values of those of kube-proxy's keys that have an effect in portolan.
fn common(document: &Json, mode: Mode) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    leaves("", document, &mut all);
    // KUBE: the section of another mode has no effect.
    let other = match mode {
        Mode::Nftables => "iptables",
        Mode::Iptables | Mode::Ipvs => "nftables",
    };
    let unused = table::unused().flat_map(|unused| &unused.keys);
    let unused: Vec<_> = unused.copied().collect();
    let left_out = ["portolan", other];
    all.retain(|key, _| {
        let is_within = |path: &&str| table::is_within(key, path);
        !unused.iter().any(is_within) && !left_out.iter().any(is_within)
    });
    all
}

/// How the settings of all files compare with those of one version of kube-proxy.
#[derive(Default)]
pub struct Compared {
    /// The keys whose values differ.
    pub differences: BTreeSet<&'static str>,
    pub taken: usize,
    pub refused: usize,
}

/// Compares the settings of every file with this ending, as `read` returns them, with what each
/// version of kube-proxy made of it. Fails if only one of the two refuses the file.
pub fn compare(ending: &str, read: impl Fn(&Path) -> Result<Config, String>) -> Vec<Compared> {
    let all = fs::read_dir(folder()).expect("the folder");
    let all = all.map(|entry| entry.expect("an entry").path());
    let is_wanted = |path: &PathBuf| path.extension().is_some_and(|found| found == ending);
    let files: Vec<_> = all.filter(is_wanted).collect();
    let with = |version: PathBuf| {
        let mut compared = Compared::default();
        for path in &files {
            let name = path.file_stem().expect("a name").to_string_lossy();
            let answer = version.join(&*name);
            let theirs = fs::read_to_string(answer.with_extension("yaml"));
            match (read(path), theirs) {
                (Ok(config), Ok(theirs)) => {
                    compared.taken += 1;
                    let found = differences(&name, &config, &theirs);
                    compared.differences.extend(found);
                    // It is also a configuration file, with every key that kube-proxy has.
                    let theirs = RawConfig::parse(&name, &theirs).and_then(RawConfig::check);
                    let theirs = theirs.unwrap_or_else(|error| panic!("{name}: {error}"));
                    assert_eq!(theirs.ignored, [], "every key is known");
                }
                (Err(_), Err(_)) => {
                    let is_known = answer.with_extension("refused").is_file();
                    assert!(is_known, "{name} is new");
                    compared.refused += 1;
                }
                (ours, theirs) => panic!("{name}: {:?}, kube-proxy: {theirs:?}", ours.err()),
            }
        }
        compared
    };
    versions().into_iter().map(with).collect()
}

/// Returns the keys whose values differ from those that kube-proxy shows (`theirs`); fails for a
/// key that is not in [`table::DIFFERENCES`].
fn differences(name: &str, config: &Config, theirs: &str) -> BTreeSet<&'static str> {
    let ours = common(&document(config).expect("written"), config.mode);
    let theirs: Json = serde_saphyr::from_str(theirs).expect("YAML");
    let theirs = common(&theirs, config.mode);
    assert!(ours.len() > 10, "{name}: {ours:?}");
    let keys: BTreeSet<_> = ours.keys().chain(theirs.keys()).collect();
    let keys = keys.into_iter();
    let differ = keys.filter(|key| ours.get(*key) != theirs.get(*key));
    let known = differ.map(|key| {
        let known = table::DIFFERENCES.iter().find(|(known, _)| known == key);
        let (ours, theirs) = (ours.get(key), theirs.get(key));
        let (known, _) =
            known.unwrap_or_else(|| panic!("{name}: {key} is {ours:?}, kube-proxy's {theirs:?}"));
        *known
    });
    known.collect()
}
