// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes OCI archives of images and of a chart, for `image`, `release` and `cluster`.

use std::io::Write;

use anyhow::{Context, Result};
use flate2::{Compression, GzBuilder};
use serde_json::{Value, json};

use crate::{cross::Arch, fs};

/// A container image for one architecture: its name, its layers and its command.
pub(crate) struct Image<'a> {
    pub(crate) name: &'a str,
    pub(crate) arch: Arch,
    /// The layers as tar archives, the lowest first.
    pub(crate) layers: Vec<&'a Blob>,
    pub(crate) entrypoint: Vec<&'a str>,
    pub(crate) arguments: Vec<&'a str>,
    /// Annotations that registries and scanners show: OCI's name and the value.
    pub(crate) labels: &'a Value,
}

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const CHART: [&str; 2] = [
    "application/vnd.cncf.helm.config.v1+json",
    "application/vnd.cncf.helm.chart.content.v1.tar+gzip",
];

/// A part of an OCI archive, with its digest.
pub(crate) struct Blob {
    media_type: &'static str,
    content: Vec<u8>,
    /// SHA-256 of the content, in hexadecimal.
    hash: String,
    /// The same of the content before it was compressed.
    unpacked: String,
}

impl Blob {
    /// Makes an image layer of a tar archive.
    pub(crate) fn layer(archive: Vec<u8>) -> Self {
        Self::new("application/vnd.oci.image.layer.v1.tar", archive)
    }
    /// Makes an image layer with one program.
    pub(crate) fn of_file(path: &str, content: &[u8]) -> Result<Self> {
        Ok(Self::layer(tar(&[(path, 0o755, content)])?))
    }
    /// Compresses a layer, so that a registry holds the same bytes as the archive.
    pub(crate) fn compressed(self) -> Result<Self> {
        let media_type = "application/vnd.oci.image.layer.v1.tar+gzip";
        let made = Self::new(media_type, gzip(&self.content)?);
        let unpacked = self.unpacked;
        Ok(Self { unpacked, ..made })
    }
    fn new(media_type: &'static str, content: Vec<u8>) -> Self {
        let hash = fs::sha256(&content);
        Self {
            media_type,
            content,
            unpacked: hash.clone(),
            hash,
        }
    }
    fn json(media_type: &'static str, content: &Value) -> Self {
        Self::new(media_type, content.to_string().into_bytes())
    }
    fn digest(&self) -> String {
        format!("sha256:{}", self.hash)
    }
    fn descriptor(&self) -> Value {
        json!({"mediaType": self.media_type, "digest": self.digest(), "size": self.content.len()})
    }
}

/// Returns an OCI archive of images, which may share layers. Images with the same name, each for
/// another architecture, form one index. The same input gives the same bytes.
pub(crate) fn archive(images: &[Image<'_>]) -> Result<Vec<u8>> {
    let mut made = Vec::new();
    // The manifests by image name, in the order of each name's first image.
    let mut by_name: Vec<(&str, Vec<Value>)> = Vec::new();
    for image in images {
        let unpacked = image.layers.iter().map(|layer| &layer.unpacked);
        let digests: Vec<_> = unpacked.map(|hash| format!("sha256:{hash}")).collect();
        let platform = json!({"architecture": image.arch.name(), "os": "linux"});
        let mut config = platform.clone();
        config["rootfs"] = json!({"type": "layers", "diff_ids": digests});
        config["config"] = json!({
            "Entrypoint": image.entrypoint, "Cmd": image.arguments, "Labels": image.labels,
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
        });
        let config = Blob::json("application/vnd.oci.image.config.v1+json", &config);
        let manifest = manifest(&config, &image.layers, image.labels);
        let mut listed = manifest.descriptor();
        listed["platform"] = platform;
        match by_name.iter_mut().find(|(name, _)| *name == image.name) {
            Some((_, platforms)) => platforms.push(listed),
            None => by_name.push((image.name, vec![listed])),
        }
        made.extend([config, manifest]);
    }
    let mut listed = Vec::new();
    for (name, platforms) in by_name {
        let entry = match &platforms[..] {
            [only] => only.clone(),
            several => {
                made.push(Blob::json(INDEX, &index_of(several)));
                made[made.len() - 1].descriptor()
            }
        };
        listed.push((name, entry));
    }
    let layers = images.iter().flat_map(|image| image.layers.iter().copied());
    layout(listed, layers.chain(&made))
}

/// Returns an OCI archive of a packed chart, as `helm push` makes it. `metadata`: its Chart.yaml.
pub(crate) fn chart(
    name: &str,
    content: Vec<u8>,
    metadata: &Value,
    labels: &Value,
) -> Result<Vec<u8>> {
    let config = Blob::json(CHART[0], metadata);
    let layer = Blob::new(CHART[1], content);
    let manifest = manifest(&config, &[&layer], labels);
    let listed = vec![(name, manifest.descriptor())];
    layout(listed, [&layer, &config, &manifest].into_iter())
}

fn manifest(config: &Blob, layers: &[&Blob], annotations: &Value) -> Blob {
    let kind = "application/vnd.oci.image.manifest.v1+json";
    let layers: Vec<_> = layers.iter().map(|layer| layer.descriptor()).collect();
    let manifest = json!({
        "schemaVersion": 2, "mediaType": kind, "config": config.descriptor(), "layers": layers,
        "annotations": annotations,
    });
    Blob::json(kind, &manifest)
}

/// Returns an archive with these blobs, and an index with the names and descriptors of `listed`.
fn layout<'a>(
    mut listed: Vec<(&str, Value)>,
    blobs: impl Iterator<Item = &'a Blob>,
) -> Result<Vec<u8>> {
    for (name, entry) in &mut listed {
        // containerd reads the annotation with the full name, other tools the one with the tag.
        entry["annotations"] = json!({
            "io.containerd.image.name": full_name(name),
            "org.opencontainers.image.ref.name":
                name.rsplit_once(':').map_or("latest", |(_, tag)| tag),
        });
    }
    let listed: Vec<_> = listed.into_iter().map(|(_, entry)| entry).collect();
    let index = index_of(&listed).to_string();
    let layout = json!({"imageLayoutVersion": "1.0.0"}).to_string();
    let mut files: Vec<(String, u32, &[u8])> = vec![
        ("oci-layout".to_owned(), 0o644, layout.as_bytes()),
        ("index.json".to_owned(), 0o644, index.as_bytes()),
    ];
    for blob in blobs {
        let name = format!("blobs/sha256/{}", blob.hash);
        if files.iter().all(|(known, ..)| *known != name) {
            files.push((name, 0o644, blob.content.as_slice()));
        }
    }
    tar(&files)
}

fn index_of(manifests: &[Value]) -> Value {
    json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests})
}

/// Returns an image's name with the registry, as containerd and the kubelet write it.
pub(crate) fn full_name(name: &str) -> String {
    match name.split_once('/') {
        Some((registry, _)) if registry.contains(['.', ':']) || registry == "localhost" => {
            name.to_owned()
        }
        Some(_) => format!("docker.io/{name}"),
        None => format!("docker.io/library/{name}"),
    }
}

/// Returns a tar archive of files that belong to root: name, mode, content.
pub(crate) fn tar(files: &[(impl AsRef<str>, u32, impl AsRef<[u8]>)]) -> Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, mode, content) in files {
        let (name, content) = (name.as_ref(), content.as_ref());
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        header.set_mode(*mode);
        header.set_mtime(0);
        header.set_uid(0);
        header.set_gid(0);
        let added = archive.append_data(&mut header, name, content);
        added.with_context(|| format!("put {name} into the archive"))?;
    }
    archive.into_inner().context("close the archive")
}

/// Compresses a content, without a name or a time.
pub(crate) fn gzip(content: &[u8]) -> Result<Vec<u8>> {
    let mut writer = GzBuilder::new().write(Vec::new(), Compression::best());
    writer.write_all(content).context("compress")?;
    writer.finish().context("compress")
}

#[cfg(test)]
pub(crate) mod tests {
    use std::{collections::BTreeMap, io::Read};

    use flate2::read::GzDecoder;

    use super::*;

    /// Returns names, modes and contents of a tar archive.
    pub(crate) fn unpacked(archive: impl Read) -> BTreeMap<String, (u32, Vec<u8>)> {
        let mut archive = tar::Archive::new(archive);
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
    fn an_archive_of_images_names_each_blob_by_its_digest() {
        let layer = |name, content: &[u8]| Blob::of_file(name, content).expect("a layer");
        let (shared, own) = (layer("base", b"shared"), layer("portolan", b"binary"));
        let own = own.compressed().expect("a layer");
        let label = "org.opencontainers.image.version";
        let named = json!({label: "1"});
        let image = |name, arch, layers| Image {
            name,
            arch,
            layers,
            entrypoint: vec!["/portolan"],
            arguments: Vec::new(),
            labels: &named,
        };
        let archive = archive(&[
            image("portolan:1", Arch::Amd64, vec![&shared, &own]),
            image("portolan:1", Arch::Arm64, vec![&shared, &own]),
            image("registry.example/other:2", Arch::Amd64, vec![&shared]),
        ]);
        let files = unpacked(archive.expect("an archive").as_slice());
        assert_eq!(files.len(), 2 + 2 + 3 * 2 + 1, "shared layers once");
        // Returns the blob that a descriptor means; its digest and size must be right.
        let blob = |descriptor: &Value| {
            let digest = descriptor["digest"].as_str().expect("a digest");
            let name = format!("blobs/sha256/{}", digest.trim_start_matches("sha256:"));
            let (_, content) = &files[&name];
            assert_eq!(digest, Blob::new("", content.clone()).digest());
            assert_eq!(descriptor["size"], content.len());
            content
        };
        let json = |content: &[u8]| serde_json::from_slice::<Value>(content).expect("JSON");
        let top = json(&files["index.json"].1);
        let named =
            |number: usize| &top["manifests"][number]["annotations"]["io.containerd.image.name"];
        assert_eq!(named(0), "docker.io/library/portolan:1");
        assert_eq!(named(1), "registry.example/other:2");
        assert_eq!(top["manifests"][0]["mediaType"], INDEX);
        let index = json(blob(&top["manifests"][0]));
        for (number, name) in ["amd64", "arm64"].into_iter().enumerate() {
            let listed = &index["manifests"][number];
            assert_eq!(listed["platform"]["architecture"], name);
            let manifest = json(blob(listed));
            let config = json(blob(&manifest["config"]));
            assert_eq!(config["architecture"], name);
            assert_eq!(config["config"]["Labels"][label], "1");
            assert_eq!(manifest["annotations"][label], "1");
            let layer = &manifest["layers"][1];
            let mut content = Vec::new();
            let read = GzDecoder::new(blob(layer).as_slice()).read_to_end(&mut content);
            read.expect("a compressed layer");
            assert_eq!(unpacked(content.as_slice())["portolan"].1, b"binary");
            let content = Blob::layer(content);
            assert_eq!(config["rootfs"]["diff_ids"][1], content.digest());
        }
    }
}
