// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes a release's files from their parts. The result depends on nothing else: not on the time, a
//! folder or the machine.

use std::{collections::BTreeMap, io::Write};

use anyhow::{Context, Result};
use flate2::{Compression, GzBuilder};

use super::Commit;
use crate::{arch::Arch, hash::sha256, image, oci};

/// Contents of files. Key: the file's name.
pub(super) type Files = BTreeMap<String, Vec<u8>>;

/// What a release's files are made from.
pub(super) struct Parts {
    pub(super) version: String,
    pub(super) commit: Commit,
    pub(super) source: Option<String>,
    pub(super) binaries: Vec<(Arch, Vec<u8>)>,
    /// Manual pages (`portolan-run.1`) and completions (`portolan.bash`, `_portolan`, ...).
    pub(super) pages: Files,
    /// Files of the repository. Key: the path in the repository.
    pub(super) project: Files,
    /// Bills of materials, one of the agent and one of the kernel programs.
    pub(super) bills: Files,
}

impl Parts {
    /// Returns a file of the repository.
    pub(super) fn project(&self, path: &str) -> Result<&[u8]> {
        let content = self.project.get(path).map(Vec::as_slice);
        content.with_context(|| format!("there is no {path}"))
    }
}

/// Returns all files of the release, including checksums.
pub(super) fn files(parts: &Parts) -> Result<Files> {
    let version = &parts.version;
    let mut files = parts.bills.clone();
    let commit = &parts.commit;
    let mut labels = vec![("revision", commit.id.as_str()), ("created", &commit.date)];
    labels.extend(
        parts
            .source
            .iter()
            .map(|source| ("source", source.as_str())),
    );
    let archive = image::index(&parts.binaries, image::NAME, version, &labels)?;
    files.insert(format!("portolan-{version}-image.tar"), archive);
    for (arch, binary) in &parts.binaries {
        let name = format!("portolan-{version}-linux-{}", arch.name());
        files.insert(format!("{name}.tar.gz"), plain(&name, binary, parts)?);
    }
    let chart = chart(parts)?;
    files.insert("index.yaml".to_owned(), chart_index(parts, &chart)?);
    files.insert(format!("portolan-{version}.tgz"), chart);
    let plugin = plugin(parts)?;
    let manifest = krew(parts, &plugin)?;
    files.insert(format!("kubectl-portolan-{version}.tar.gz"), plugin);
    files.extend(manifest.map(|manifest| (format!("portolan-{version}-krew.yaml"), manifest)));
    let sums = files
        .iter()
        .map(|(name, content)| format!("{}  {name}\n", sha256(content)));
    let sums = sums.collect::<String>();
    files.insert("SHA256SUMS".to_owned(), sums.into_bytes());
    Ok(files)
}

/// Packs the helm chart as `helm package` does, but with the same bytes each time.
fn chart(parts: &Parts) -> Result<Vec<u8>> {
    let mut entries = Vec::new();
    for (path, content) in &parts.project {
        if let Some(inside) = path.strip_prefix("deploy/chart/") {
            entries.push((format!("portolan/{inside}"), 0o644, content));
        }
    }
    archive(&entries)
}

/// Returns the index of a chart repository: with it, a web server's folder of the release is one.
fn chart_index(parts: &Parts, chart: &[u8]) -> Result<Vec<u8>> {
    let about = parts.project("deploy/chart/Chart.yaml")?;
    let about = std::str::from_utf8(about).context("read Chart.yaml")?;
    let about = about.lines().filter(|line| !line.starts_with('#'));
    let mut text = "apiVersion: v1\nentries:\n  portolan:\n    -\n".to_owned();
    for line in about {
        text += &format!("      {line}\n");
    }
    let (version, date, digest) = (&parts.version, &parts.commit.date, sha256(chart));
    text += &format!(
        "      created: {date}\n      digest: {digest}\n      urls: [portolan-{version}.tgz]\ngenerated: {date}\n"
    );
    Ok(text.into_bytes())
}

/// Packs the kubectl plugin as an archive that krew can unpack.
fn plugin(parts: &Parts) -> Result<Vec<u8>> {
    let program = "deploy/kubectl/kubectl-portolan";
    let files = [program, "LICENSE-APACHE", "LICENSE-MIT"];
    let entries = files.map(|path| {
        let mode = if path == program { 0o755 } else { 0o644 };
        let name = path.rsplit('/').next().unwrap_or(path);
        Ok((name, mode, parts.project(path)?))
    });
    archive(&entries.into_iter().collect::<Result<Vec<_>>>()?)
}

/// Returns krew's manifest of the plugin; None if the source's address is not known.
fn krew(parts: &Parts, plugin: &[u8]) -> Result<Option<Vec<u8>>> {
    let Some(source) = &parts.source else {
        return Ok(None);
    };
    let template = parts.project("deploy/kubectl/krew.yaml")?;
    let template = std::str::from_utf8(template).context("read krew.yaml")?;
    // Removes comments, which explain the template.
    let lines = template.lines().filter(|line| !line.starts_with('#'));
    let mut text = lines.fold(String::new(), |all, line| all + line + "\n");
    for (place, value) in [
        ("VERSION", parts.version.as_str()),
        ("SOURCE", source.trim_end_matches('/')),
        ("DIGEST", &sha256(plugin)),
    ] {
        text = text.replace(place, value);
    }
    Ok(Some(text.into_bytes()))
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
    for (path, content) in &parts.project {
        let name = path.strip_prefix("deploy/").unwrap_or(path);
        if ["LICENSE", "CHANGELOG.md", "systemd/"]
            .iter()
            .any(|start| name.starts_with(start))
        {
            entries.push((format!("{folder}/{name}"), 0o644, content));
        }
    }
    archive(&entries)
}

/// Returns a gzip-compressed tar archive of files: name, mode, content.
fn archive(entries: &[(impl AsRef<str>, u32, impl AsRef<[u8]>)]) -> Result<Vec<u8>> {
    gzip(&oci::tar(entries)?)
}

/// Compresses the content with gzip, without file name and time.
fn gzip(content: &[u8]) -> Result<Vec<u8>> {
    let mut writer = GzBuilder::new().write(Vec::new(), Compression::best());
    writer.write_all(content).context("compress")?;
    writer.finish().context("compress")
}

#[cfg(test)]
mod tests {
    use flate2::read::GzDecoder;

    use super::*;
    use crate::{
        oci::tests::unpacked,
        release::{compare, project},
    };

    /// Returns the files of a release of the repository's own files and small binaries, after
    /// `change`.
    fn files_of(change: impl FnOnce(&mut Parts)) -> Files {
        let pages = [
            "portolan-run.1",
            "settings.md",
            "portolan.bash",
            "_portolan",
        ];
        let mut parts = Parts {
            version: "1.2.3".to_owned(),
            commit: Commit {
                id: "0123456789abcdef0123456789abcdef01234567".to_owned(),
                time: "1700000000".to_owned(),
                date: "2023-11-14T22:13:20Z".to_owned(),
            },
            source: Some("https://example.org/portolan".to_owned()),
            binaries: vec![
                (Arch::Amd64, b"one binary".to_vec()),
                (Arch::Arm64, b"another binary".to_vec()),
            ],
            pages: pages.map(|name| (name.to_owned(), Vec::new())).into(),
            project: project().expect("the repository's files"),
            bills: Files::from([(
                "portolan-1.2.3-proxy-user.cdx.json".to_owned(),
                b"{}".to_vec(),
            )]),
        };
        change(&mut parts);
        files(&parts).expect("a release")
    }

    #[test]
    fn a_release_has_all_its_files_with_matching_checksums() {
        let files = files_of(|_| ());
        let names: Vec<_> = files.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            [
                "SHA256SUMS",
                "index.yaml",
                "kubectl-portolan-1.2.3.tar.gz",
                "portolan-1.2.3-image.tar",
                "portolan-1.2.3-krew.yaml",
                "portolan-1.2.3-linux-amd64.tar.gz",
                "portolan-1.2.3-linux-arm64.tar.gz",
                "portolan-1.2.3-proxy-user.cdx.json",
                "portolan-1.2.3.tgz",
            ]
        );
        let sums = String::from_utf8(files["SHA256SUMS"].clone()).expect("text");
        assert_eq!(sums.lines().count(), files.len() - 1);
        for line in sums.lines() {
            let (sum, name) = line.split_once("  ").expect("a sum and a name");
            assert_eq!(sum, sha256(&files[name]), "{name}");
        }
        let chart = unpacked(GzDecoder::new(files["portolan-1.2.3.tgz"].as_slice()));
        assert!(chart.contains_key("portolan/Chart.yaml"));
        let folder = "portolan-1.2.3-linux-arm64";
        let inside = unpacked(GzDecoder::new(
            files[&format!("{folder}.tar.gz")].as_slice(),
        ));
        let binary = &inside[&format!("{folder}/portolan")];
        assert_eq!(*binary, (0o755, b"another binary".to_vec()));
        for name in "man/portolan-run.1 completions/_portolan docs/settings.md \
            systemd/portolan.service LICENSE-MIT"
            .split_whitespace()
        {
            assert!(inside.contains_key(&format!("{folder}/{name}")), "{name}");
        }
    }

    #[test]
    fn krews_manifest_names_the_plugins_archive_and_its_digest() {
        let files = files_of(|_| ());
        let archive = &files["kubectl-portolan-1.2.3.tar.gz"];
        let inside = unpacked(GzDecoder::new(archive.as_slice()));
        assert_eq!(inside["kubectl-portolan"].0, 0o755);
        let manifest = String::from_utf8(files["portolan-1.2.3-krew.yaml"].clone()).expect("text");
        for line in [
            "  version: v1.2.3",
            "      uri: https://example.org/portolan/releases/download/v1.2.3/kubectl-portolan-1.2.3.tar.gz",
            &format!("      sha256: {}", sha256(archive)),
        ] {
            let found = manifest.lines().any(|found| found == line);
            assert!(found, "{line}: {manifest}");
        }
        for (name, _) in inside {
            assert!(manifest.contains(&format!("from: {name}, to: .")), "{name}");
        }
        for place in ["VERSION", "SOURCE", "DIGEST"] {
            assert!(!manifest.contains(place), "{manifest}");
        }
        let files = files_of(|parts| parts.source = None);
        assert!(!files.contains_key("portolan-1.2.3-krew.yaml"));
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
