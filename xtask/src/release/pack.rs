// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes a release's files from their parts. The result depends on nothing else: not on the time, a
//! folder or the machine.

use std::{collections::BTreeMap, io::Write};

use anyhow::{Context, Result};
use flate2::{Compression, GzBuilder};
use sha2::{Digest, Sha256};

use super::{Commit, deb, statement};
use crate::{arch::Arch, image, oci};

/// Contents of files. Key: the file's name.
pub(super) type Files = BTreeMap<String, Vec<u8>>;

/// What a release's files are made from.
pub(super) struct Parts {
    pub(super) version: String,
    pub(super) commit: Commit,
    pub(super) source: Option<String>,
    pub(super) maintainer: String,
    pub(super) binaries: Vec<(Arch, Vec<u8>)>,
    /// Manual pages (`portolan-run.1`) and completions (`portolan.bash`, `_portolan`, ...).
    pub(super) pages: Files,
    /// Files of the repository. Key: the path in the repository.
    pub(super) project: Files,
    /// Bills of materials, one of the agent and one of the kernel programs.
    pub(super) bills: Files,
}

/// Returns all files of the release, including checksums and the provenance statement to sign.
pub(super) fn files(parts: &Parts) -> Result<Files> {
    let version = &parts.version;
    let mut files = parts.bills.clone();
    let mut labels = vec![
        ("revision", parts.commit.id.clone()),
        ("created", parts.commit.date.clone()),
    ];
    labels.extend(parts.source.iter().map(|source| ("source", source.clone())));
    let archive = image::index(&parts.binaries, image::NAME, version, &labels)?;
    files.insert(format!("portolan-{version}-image.tar"), archive);
    for (arch, binary) in &parts.binaries {
        let name = format!("portolan-{version}-linux-{}", arch.name());
        files.insert(format!("{name}.tar.gz"), plain(&name, binary, parts)?);
        let package = deb::package(*arch, binary, parts)?;
        files.insert(format!("portolan_{version}_{}.deb", arch.name()), package);
    }
    files.insert(format!("portolan-{version}.tgz"), chart(parts)?);
    let plugin = plugin(parts)?;
    let manifest = krew(parts, &plugin)?;
    files.insert(format!("kubectl-portolan-{version}.tar.gz"), plugin);
    files.extend(manifest.map(|manifest| (format!("portolan-{version}-krew.yaml"), manifest)));
    let statement = statement::statement(parts, &files)?;
    files.insert(format!("portolan-{version}.intoto.json"), statement);
    let sums: String = files
        .iter()
        .map(|(name, content)| format!("{}  {name}\n", digest(content)))
        .collect();
    files.insert("SHA256SUMS".to_owned(), sums.into_bytes());
    Ok(files)
}

/// Packs the helm chart as `helm package` does, but with the same bytes each time.
fn chart(parts: &Parts) -> Result<Vec<u8>> {
    let named = |(path, content): (&String, &Vec<u8>)| {
        let inside = path.strip_prefix("deploy/chart/")?;
        Some((format!("portolan/{inside}"), 0o644, content.clone()))
    };
    archive(&parts.project.iter().filter_map(named).collect::<Vec<_>>())
}

/// Packs the kubectl plugin as an archive that krew can unpack.
fn plugin(parts: &Parts) -> Result<Vec<u8>> {
    let program = "deploy/kubectl/kubectl-portolan";
    let files = [program, "LICENSE-APACHE", "LICENSE-MIT"];
    let entries = files.map(|path| {
        let content = parts.project.get(path);
        let content = content.with_context(|| format!("there is no {path}"))?;
        let mode = if path == program { 0o755 } else { 0o644 };
        let name = path.rsplit('/').next().unwrap_or(path);
        Ok((name.to_owned(), mode, content.clone()))
    });
    archive(&entries.into_iter().collect::<Result<Vec<_>>>()?)
}

/// Returns krew's manifest of the plugin; None if the source's address is not known.
fn krew(parts: &Parts, plugin: &[u8]) -> Result<Option<Vec<u8>>> {
    let Some(source) = &parts.source else {
        return Ok(None);
    };
    let template = parts.project.get("deploy/kubectl/krew.yaml");
    let template = template.context("there is no deploy/kubectl/krew.yaml")?;
    let mut text = String::from_utf8(template.clone()).context("read krew.yaml")?;
    // Removes comments, which explain the template.
    text = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .fold(String::new(), |all, line| all + line + "\n");
    for (place, value) in [
        ("VERSION", parts.version.as_str()),
        ("SOURCE", source.trim_end_matches('/')),
        ("DIGEST", &digest(plugin)),
    ] {
        text = text.replace(place, value);
    }
    Ok(Some(text.into_bytes()))
}

/// Packs the binary with manual pages, completions, systemd unit, licences and changelog.
fn plain(folder: &str, binary: &[u8], parts: &Parts) -> Result<Vec<u8>> {
    let mut entries = vec![(format!("{folder}/portolan"), 0o755, binary.to_vec())];
    for (name, content) in &parts.pages {
        let place = if name.ends_with(".1") {
            "man"
        } else {
            "completions"
        };
        entries.push((format!("{folder}/{place}/{name}"), 0o644, content.clone()));
    }
    for (path, content) in &parts.project {
        if let Some(name) = path.strip_prefix("deploy/systemd/") {
            entries.push((format!("{folder}/systemd/{name}"), 0o644, content.clone()));
        } else if path.starts_with("LICENSE") || path == "CHANGELOG.md" {
            entries.push((format!("{folder}/{path}"), 0o644, content.clone()));
        }
    }
    archive(&entries)
}

/// Returns a gzip-compressed tar archive of files: name, mode, content.
pub(super) fn archive(entries: &[(String, u32, Vec<u8>)]) -> Result<Vec<u8>> {
    let entries: Vec<_> = entries
        .iter()
        .map(|(name, mode, content)| (name.clone(), *mode, content.as_slice()))
        .collect();
    gzip(&oci::tar(&entries)?)
}

/// Compresses the content with gzip, without file name and time.
pub(super) fn gzip(content: &[u8]) -> Result<Vec<u8>> {
    let mut writer = GzBuilder::new().write(Vec::new(), Compression::best());
    writer.write_all(content).context("compress")?;
    writer.finish().context("compress")
}

/// Returns the SHA-256 of the content in hexadecimal.
pub(super) fn digest(content: &[u8]) -> String {
    let digest = Sha256::digest(content);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::Read;

    use flate2::read::GzDecoder;

    use super::*;
    use crate::release::{compare, trial::parts};

    /// Returns names, modes and contents of a compressed archive.
    pub(in super::super) fn unpacked(archive: &[u8]) -> BTreeMap<String, (u32, Vec<u8>)> {
        let mut archive = tar::Archive::new(GzDecoder::new(archive));
        let entries = archive.entries().expect("an archive");
        let read = entries.map(|entry| {
            let mut entry = entry.expect("an entry");
            let name = entry.path().expect("a name").display().to_string();
            let mode = entry.header().mode().expect("a mode");
            let mut content = Vec::new();
            entry.read_to_end(&mut content).expect("content");
            (name, (mode, content))
        });
        read.collect()
    }

    #[test]
    fn a_release_has_its_files_and_the_sums_are_theirs() {
        let files = files(&parts().expect("parts")).expect("a release");
        let names: Vec<_> = files.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            [
                "SHA256SUMS",
                "kubectl-portolan-1.2.3.tar.gz",
                "portolan-1.2.3-image.tar",
                "portolan-1.2.3-krew.yaml",
                "portolan-1.2.3-linux-amd64.tar.gz",
                "portolan-1.2.3-linux-arm64.tar.gz",
                "portolan-1.2.3.cdx.json",
                "portolan-1.2.3.intoto.json",
                "portolan-1.2.3.tgz",
                "portolan_1.2.3_amd64.deb",
                "portolan_1.2.3_arm64.deb",
            ]
        );
        let sums = String::from_utf8(files["SHA256SUMS"].clone()).expect("text");
        assert_eq!(sums.lines().count(), files.len() - 1);
        for line in sums.lines() {
            let (sum, name) = line.split_once("  ").expect("a sum and a name");
            assert_eq!(sum, digest(&files[name]), "{name}");
        }
        // `printf portolan | sha256sum`
        assert_eq!(
            digest(b"portolan"),
            "61aef21156ffca6a6927ced21ac6a805a0a30c14398012f15e68a25ae0c020e9"
        );
    }

    #[test]
    fn krews_manifest_names_the_plugins_archive_and_its_digest() {
        let files = files(&parts().expect("parts")).expect("a release");
        let archive = &files["kubectl-portolan-1.2.3.tar.gz"];
        let inside = unpacked(archive);
        assert_eq!(inside["kubectl-portolan"].0, 0o755);
        let manifest = String::from_utf8(files["portolan-1.2.3-krew.yaml"].clone()).expect("text");
        for line in [
            "  version: v1.2.3",
            "      uri: https://example.org/portolan/releases/download/v1.2.3/kubectl-portolan-1.2.3.tar.gz",
            &format!("      sha256: {}", digest(archive)),
        ] {
            assert!(
                manifest.lines().any(|found| found == line),
                "{line}: {manifest}"
            );
        }
        for (name, _) in inside {
            assert!(manifest.contains(&format!("from: {name}, to: .")), "{name}");
        }
        for place in ["VERSION", "SOURCE", "DIGEST"] {
            assert!(!manifest.contains(place), "{manifest}");
        }
        let mut nowhere = parts().expect("parts");
        nowhere.source = None;
        let files = super::files(&nowhere).expect("a release");
        assert!(!files.contains_key("portolan-1.2.3-krew.yaml"));
    }

    #[test]
    fn two_packings_give_the_same_bytes_and_another_binary_other_ones() {
        let once = files(&parts().expect("parts")).expect("a release");
        let again = files(&parts().expect("parts")).expect("a release");
        compare(&once, &again).expect("the same bytes");
        let mut other = parts().expect("parts");
        other.binaries[1].1.push(0);
        let other = files(&other).expect("a release");
        let error = compare(&once, &other).expect_err("they differ").to_string();
        for name in [
            "-image.tar",
            "arm64.tar.gz",
            "_arm64.deb",
            "intoto",
            "SHA256SUMS",
        ] {
            assert!(error.contains(name), "{name}: {error}");
        }
        assert!(!error.contains("amd64"), "{error}");
    }

    #[test]
    fn the_plain_archive_has_binary_pages_unit_and_licences() {
        let files = files(&parts().expect("parts")).expect("a release");
        let inside = unpacked(&files["portolan-1.2.3-linux-arm64.tar.gz"]);
        let folder = "portolan-1.2.3-linux-arm64";
        assert_eq!(
            inside[&format!("{folder}/portolan")],
            (0o755, b"another binary".to_vec())
        );
        for name in [
            "man/portolan-run.1",
            "completions/_portolan",
            "systemd/portolan.service",
            "LICENSE-MIT",
        ] {
            assert!(inside.contains_key(&format!("{folder}/{name}")), "{name}");
        }
    }
}
