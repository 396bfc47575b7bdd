// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes a release's files from their parts, and nothing else: no time, no folder, no machine.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{Commit, SUMS};
use crate::{
    cross::Arch,
    fs::sha256,
    image,
    oci::{self, Blob},
};

/// Contents of files. Key: the file's name.
pub(super) type Files = BTreeMap<String, Vec<u8>>;

pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");
const PLUGIN: &str = "deploy/kubectl/kubectl-portolan";

/// What a release's files are made from.
pub(super) struct Parts {
    pub(super) commit: Commit,
    pub(super) source: Option<String>,
    pub(super) registry: Option<String>,
    pub(super) binaries: Vec<(Arch, Vec<u8>)>,
    /// Manual pages (`portolan-run.1`) and completions (`portolan.bash`, `_portolan`, ...).
    pub(super) pages: Files,
    /// Files of the repository. Key: the path in the repository.
    pub(super) project: Files,
    /// Bills of materials, one of the agent and one of the kernel programs.
    pub(super) bills: Files,
}

impl Parts {
    fn text(&self, path: &str) -> Result<&str> {
        let content = self.project.get(path);
        let content = content.with_context(|| format!("there is no {path}"))?;
        str::from_utf8(content).with_context(|| format!("read {path}"))
    }

    /// Returns the name that an image or a chart has in the registry, with its tag.
    fn in_registry(&self, name: &str) -> String {
        let folder = self.registry.as_deref().unwrap_or_default();
        let name = format!("{}/{name}:{VERSION}", folder.trim_end_matches('/'));
        name.trim_start_matches('/').to_owned()
    }

    /// Returns an archive of those files of the repository that have a name in it.
    fn archive<'a>(&'a self, name: impl Fn(&'a str) -> Option<String>) -> Result<Vec<u8>> {
        archive(self.entries(name))
    }

    fn entries<'a>(&'a self, name: impl Fn(&'a str) -> Option<String>) -> Vec<Entry<'a>> {
        let mode = |path| if path == PLUGIN { 0o755 } else { 0o644 };
        let entry = |(path, content): (&'a String, &'a Vec<u8>)| {
            Some((name(path)?, mode(path), content.as_slice()))
        };
        self.project.iter().filter_map(entry).collect()
    }
}

/// A file of an archive: name, mode, content.
type Entry<'a> = (String, u32, &'a [u8]);

/// Returns all files of the release, including checksums.
pub(super) fn files(parts: &Parts) -> Result<Files> {
    let mut files = parts.bills.clone();
    let commit = &parts.commit;
    let mut labels = vec![("revision", commit.id.as_str()), ("created", &commit.date)];
    let source = parts.source.iter();
    labels.extend(source.map(|source| ("source", source.as_str())));
    let labels = image::labels(&labels);
    let name = parts.in_registry("portolan");
    let archive = image::index(&name, &parts.binaries, &labels, Blob::compressed)?;
    files.insert(format!("portolan-{VERSION}-image.tar"), archive);
    for (arch, binary) in &parts.binaries {
        let name = format!("portolan-{VERSION}-linux-{}", arch.name());
        files.insert(format!("{name}.tar.gz"), plain(&name, binary, parts)?);
    }
    // The helm chart, as `helm package` packs it, but with the same bytes each time.
    let chart =
        parts.archive(|path| Some(format!("portolan/{}", path.strip_prefix("deploy/chart/")?)))?;
    let metadata: Value = serde_saphyr::from_str(parts.text("deploy/chart/Chart.yaml")?)?;
    let index = chart_index(&parts.commit, &metadata, &chart);
    files.insert("index.yaml".to_owned(), index.into_bytes());
    files.insert(format!("portolan-{VERSION}.tgz"), chart.clone());
    let name = parts.in_registry("charts/portolan");
    let archive = oci::chart(&name, chart, &metadata, &labels)?;
    files.insert(format!("portolan-{VERSION}-chart.tar"), archive);
    // The kubectl plugin, as krew can unpack it.
    let plugin = parts.archive(|path| {
        let is_part = [PLUGIN, "LICENSE-APACHE", "LICENSE-MIT"].contains(&path);
        is_part.then(|| path.rsplit('/').next().unwrap_or(path).to_owned())
    })?;
    let digest = sha256(&plugin);
    files.insert(format!("kubectl-portolan-{VERSION}.tar.gz"), plugin);
    if let Some(source) = &parts.source {
        let template = parts.text("deploy/kubectl/krew.yaml")?.lines();
        let lines = template.filter(|line| !line.starts_with('#'));
        let text: String = lines.map(|line| format!("{line}\n")).collect();
        let text = text.replace("VERSION", VERSION).replace("DIGEST", &digest);
        let text = text.replace("SOURCE", source.trim_end_matches('/'));
        files.insert(format!("portolan-{VERSION}-krew.yaml"), text.into_bytes());
    }
    let sum = |(name, content): (&String, &Vec<u8>)| format!("{}  {name}\n", sha256(content));
    let sums: String = files.iter().map(sum).collect();
    files.insert(SUMS.to_owned(), sums.into_bytes());
    Ok(files)
}

/// Returns the index of a chart repository: with it, a web server's folder of the release is one.
/// JSON is YAML too.
fn chart_index(commit: &Commit, metadata: &Value, chart: &[u8]) -> String {
    let mut entry = metadata.clone();
    entry["created"] = commit.date.as_str().into();
    entry["digest"] = sha256(chart).into();
    entry["urls"] = json!([format!("portolan-{VERSION}.tgz")]);
    let entries = json!({"portolan": [entry]});
    let index = json!({"apiVersion": "v1", "generated": commit.date, "entries": entries});
    format!("{index:#}\n")
}

/// Packs the binary with manual pages, completions, systemd unit, licences and changelog.
fn plain(folder: &str, binary: &[u8], parts: &Parts) -> Result<Vec<u8>> {
    let mut entries = vec![(format!("{folder}/portolan"), 0o755, binary)];
    for (name, content) in &parts.pages {
        let kind = match name.rsplit_once('.') {
            Some((_, "1")) => "man",
            Some((_, "md")) => "docs",
            _ => "completions",
        };
        entries.push((format!("{folder}/{kind}/{name}"), 0o644, content));
    }
    entries.extend(parts.entries(|path| {
        let name = path.strip_prefix("deploy/").unwrap_or(path);
        let starts = ["LICENSE", "CHANGELOG.md", "systemd/"];
        let is_part = starts.iter().any(|start| name.starts_with(start));
        is_part.then(|| format!("{folder}/{name}"))
    }));
    archive(entries)
}

/// Returns a gzip-compressed tar archive of files, without name and time.
fn archive(entries: Vec<Entry<'_>>) -> Result<Vec<u8>> {
    oci::gzip(&oci::tar(&entries)?)
}

#[cfg(test)]
mod tests {
    use flate2::read::GzDecoder;

    use super::*;
    use crate::{
        oci::tests::unpacked,
        release::{compare, project},
    };

    /// Returns a release of the repository's own files and small binaries, after `change`.
    fn files_of(change: impl FnOnce(&mut Parts)) -> Files {
        let pages = "portolan-run.1 settings.md portolan.bash _portolan".split(' ');
        let mut parts = Parts {
            commit: Commit {
                id: "0123456789abcdef0123456789abcdef01234567".to_owned(),
                time: "1700000000".to_owned(),
                date: "2023-11-14T22:13:20Z".to_owned(),
            },
            source: Some("https://example.org/portolan".to_owned()),
            registry: Some("example.org/it/".to_owned()),
            binaries: [(Arch::Amd64, "one"), (Arch::Arm64, "another")]
                .map(|(arch, content)| (arch, content.as_bytes().to_vec()))
                .into(),
            pages: pages.map(|name| (name.to_owned(), Vec::new())).collect(),
            project: project(Some("example.org/it/")).expect("the repository's files"),
            bills: [("portolan-proxy-user.cdx.json".to_owned(), b"{}".to_vec())].into(),
        };
        change(&mut parts);
        files(&parts).expect("a release")
    }

    #[test]
    fn a_release_has_all_its_files_with_matching_checksums() {
        let files = files_of(|_| ());
        let names = "SHA256SUMS index.yaml kubectl-portolan-V.tar.gz portolan-V-chart.tar portolan-V-image.tar \
            portolan-V-krew.yaml portolan-V-linux-amd64.tar.gz portolan-V-linux-arm64.tar.gz portolan-V.tgz portolan-proxy-user.cdx.json";
        let found = files.keys().map(|name| name.replace(VERSION, "V"));
        let found: Vec<_> = found.collect();
        assert_eq!(found.join(" "), names);
        let sums = String::from_utf8(files["SHA256SUMS"].clone()).expect("text");
        assert_eq!(sums.lines().count(), files.len() - 1);
        for line in sums.lines() {
            let (sum, name) = line.split_once("  ").expect("a sum and a name");
            assert_eq!(sum, sha256(&files[name]), "{name}");
        }
        let unpacked = |name: &str| unpacked(GzDecoder::new(files[name].as_slice()));
        let folder = format!("portolan-{VERSION}-linux-arm64");
        let inside = unpacked(&format!("{folder}.tar.gz"));
        let binary = &inside[&format!("{folder}/portolan")];
        assert_eq!(*binary, (0o755, b"another".to_vec()));
        for name in "man/portolan-run.1 completions/_portolan docs/settings.md \
            systemd/portolan.service LICENSE-MIT"
            .split_whitespace()
        {
            assert!(inside.contains_key(&format!("{folder}/{name}")), "{name}");
        }
    }

    #[test]
    fn the_chart_of_a_registry_and_of_a_repository_names_its_version_and_the_image() {
        let files = files_of(|_| ());
        let chart = &files[&format!("portolan-{VERSION}.tgz")];
        let inside = unpacked(GzDecoder::new(chart.as_slice()));
        let values = String::from_utf8(inside["portolan/values.yaml"].1.clone());
        let image = "\nimage:\n  # The image's name, with its registry.\n  repository: example.org/it/portolan\n";
        assert!(values.expect("text").contains(image));
        let json = |content: &[u8]| serde_json::from_slice::<Value>(content).expect("JSON");
        let listed = &json(&files["index.yaml"])["entries"]["portolan"][0];
        assert_eq!(listed["version"], VERSION);
        assert_eq!(listed["digest"], sha256(chart));
        let archive = unpacked(files[&format!("portolan-{VERSION}-chart.tar")].as_slice());
        let blob = |descriptor: &Value| {
            let digest = descriptor["digest"].as_str().expect("a digest");
            archive[&format!("blobs/{}", digest.replace(':', "/"))]
                .1
                .as_slice()
        };
        let top = &json(&archive["index.json"].1)["manifests"][0];
        let name = &top["annotations"]["io.containerd.image.name"];
        assert_eq!(name, &format!("example.org/it/charts/portolan:{VERSION}"));
        let manifest = json(blob(top));
        assert_eq!(blob(&manifest["layers"][0]), chart);
        assert_eq!(json(blob(&manifest["config"]))["appVersion"], VERSION);
    }

    #[test]
    fn krews_manifest_names_the_plugins_archive_and_its_digest() {
        let files = files_of(|_| ());
        let archive = &files[&format!("kubectl-portolan-{VERSION}.tar.gz")];
        let inside = unpacked(GzDecoder::new(archive.as_slice()));
        assert_eq!(inside["kubectl-portolan"].0, 0o755);
        let name = format!("portolan-{VERSION}-krew.yaml");
        let manifest = String::from_utf8(files[&name].clone()).expect("text");
        let address = "https://example.org/portolan/releases/download";
        for line in [
            format!("  version: v{VERSION}\n"),
            format!("uri: {address}/v{VERSION}/kubectl-portolan-{VERSION}.tar.gz\n"),
            format!("      sha256: {}\n", sha256(archive)),
        ] {
            assert!(manifest.contains(&line), "{line}: {manifest}");
        }
        for (name, _) in inside {
            assert!(manifest.contains(&format!("from: {name}, to: .")), "{name}");
        }
        for place in ["VERSION", "SOURCE", "DIGEST"] {
            assert!(!manifest.contains(place), "{manifest}");
        }
        assert!(!files_of(|parts| parts.source = None).contains_key(&name));
    }

    #[test]
    fn packing_twice_gives_the_same_bytes_unless_a_binary_differs() {
        let once = files_of(|_| ());
        compare(&once, &files_of(|_| ())).expect("the same bytes");
        let other = files_of(|parts| parts.binaries[1].1.push(0));
        let error = compare(&once, &other).expect_err("they differ").to_string();
        for name in "-image.tar arm64.tar.gz SHA256SUMS".split(' ') {
            assert!(error.contains(name), "{name}: {error}");
        }
        assert!(!error.contains("amd64"), "{error}");
    }
}
