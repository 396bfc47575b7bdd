// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask image`: one static binary, and an OCI archive around it, without a docker daemon.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::{
    cargo::{self, AGENT_PACKAGE},
    setup::{self, Needs},
};

const BINARY: &str = "portolan";
/// In the image.
const ENTRYPOINT: &str = "/portolan";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Name of the image
    #[arg(long, default_value = "portolan")]
    name: String,
    /// Tag of the image [default: the version]
    #[arg(long)]
    tag: Option<String>,
    /// Only the binary, for deploy/Dockerfile
    #[arg(long)]
    binary_only: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    setup::run(Needs::Build)?;
    let binary = build()?;
    let folder = cargo::root().join("target/image");
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let copy = folder.join(BINARY);
    fs::copy(&binary, &copy).with_context(|| format!("copy the binary to {}", copy.display()))?;
    println!(
        "{}: {} MiB, static",
        copy.display(),
        fs::metadata(&copy)?.len() >> 20
    );
    if arguments.binary_only {
        return Ok(());
    }
    let tag = arguments
        .tag
        .as_deref()
        .unwrap_or(env!("CARGO_PKG_VERSION"));
    let archive = folder.join(format!("portolan-{tag}.tar"));
    let content = fs::read(&copy).with_context(|| format!("read {}", copy.display()))?;
    let image = image(
        &content,
        &format!("{}:{tag}", arguments.name),
        architecture(),
    )?;
    let mut file =
        File::create(&archive).with_context(|| format!("write {}", archive.display()))?;
    file.write_all(&image)
        .with_context(|| format!("write {}", archive.display()))?;
    println!("{}: {}:{tag}", archive.display(), arguments.name);
    println!(
        "load it on a node: ctr -n k8s.io images import {}",
        archive.display()
    );
    Ok(())
}

/// As OCI calls this machine's processor.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Builds the agent with everything it needs inside.
fn build() -> Result<PathBuf> {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    // In a folder of its own: other flags would throw away what the other commands have built.
    let folder = cargo::root().join("target/static");
    let mut command = cargo::cargo("build");
    command
        .args([
            "--locked",
            "--release",
            "--package",
            AGENT_PACKAGE,
            "--bin",
            BINARY,
        ])
        // With a target named, build scripts and macros are not linked so.
        .args(["--target", &target])
        .arg("--target-dir")
        .arg(&folder)
        .env(
            "RUSTFLAGS",
            "-Ctarget-feature=+crt-static -Cstrip=debuginfo",
        );
    let status = command.status().context("start cargo")?;
    ensure!(status.success(), "build the static binary: {status}");
    let binary = folder.join(target).join("release").join(BINARY);
    let content = fs::read(&binary).with_context(|| format!("read {}", binary.display()))?;
    if let Some(interpreter) = interpreter(&content) {
        bail!(
            "{} is not static: it wants {interpreter}; is libc's static library (Debian: libc6-dev) installed?",
            binary.display()
        );
    }
    Ok(binary)
}

/// The dynamic linker that an ELF file of 64 bits asks for.
fn interpreter(elf: &[u8]) -> Option<String> {
    const PT_INTERP: u64 = 3;
    let number = |at: usize, length: usize| -> Option<u64> {
        let bytes = elf.get(at..at + length)?;
        Some(
            bytes
                .iter()
                .rev()
                .fold(0, |sum, byte| sum << 8 | u64::from(*byte)),
        )
    };
    let at = |at, length| number(at, length).and_then(|found| usize::try_from(found).ok());
    let (headers, size, count) = (at(0x20, 8)?, at(0x36, 2)?, at(0x38, 2)?);
    (0..count)
        .map(|index| headers + index * size)
        .find_map(|header| {
            if number(header, 4)? != PT_INTERP {
                return None;
            }
            let (offset, length) = (at(header + 8, 8)?, at(header + 32, 8)?);
            let name = elf.get(offset..offset + length)?;
            Some(
                String::from_utf8_lossy(name)
                    .trim_end_matches('\0')
                    .to_owned(),
            )
        })
}

/// An OCI archive of one layer that holds the binary. The same input gives the same bytes.
fn image(binary: &[u8], name: &str, architecture: &str) -> Result<Vec<u8>> {
    let layer = archive(&[(ENTRYPOINT.trim_start_matches('/').to_owned(), 0o755, binary)])?;
    let layer = Blob::new("application/vnd.oci.image.layer.v1.tar", layer);
    let config = Blob::json(
        "application/vnd.oci.image.config.v1+json",
        &json!({
            "architecture": architecture, "os": "linux",
            "config": {"Entrypoint": [ENTRYPOINT], "Cmd": ["run"]},
            "rootfs": {"type": "layers", "diff_ids": [layer.digest()]},
        }),
    );
    let manifest = Blob::json(
        "application/vnd.oci.image.manifest.v1+json",
        &json!({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": config.descriptor(), "layers": [layer.descriptor()],
        }),
    );
    let mut listed = manifest.descriptor();
    // containerd takes the whole name, others the reference.
    listed["annotations"] = json!({
        "io.containerd.image.name": full_name(name),
        "org.opencontainers.image.ref.name": name.rsplit_once(':').map_or("latest", |(_, tag)| tag),
    });
    let index = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [listed],
    })
    .to_string();
    let layout = json!({"imageLayoutVersion": "1.0.0"}).to_string();
    let blobs = [&layer, &config, &manifest];
    let mut files = vec![
        ("oci-layout".to_owned(), 0o644, layout.as_bytes()),
        ("index.json".to_owned(), 0o644, index.as_bytes()),
    ];
    files.extend(blobs.map(|blob| {
        (
            format!("blobs/sha256/{}", blob.hash),
            0o644,
            blob.content.as_slice(),
        )
    }));
    archive(&files)
}

/// As containerd and the kubelet write a name without a registry.
fn full_name(name: &str) -> String {
    match name.split_once('/') {
        Some((registry, _)) if registry.contains(['.', ':']) || registry == "localhost" => {
            name.to_owned()
        }
        Some(_) => format!("docker.io/{name}"),
        None => format!("docker.io/library/{name}"),
    }
}

struct Blob {
    media_type: &'static str,
    content: Vec<u8>,
    /// Of the content, in hexadecimal.
    hash: String,
}

impl Blob {
    fn new(media_type: &'static str, content: Vec<u8>) -> Self {
        let hash = Sha256::digest(&content)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        Self {
            media_type,
            content,
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

fn archive(files: &[(String, u32, &[u8])]) -> Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, mode, content) in files {
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        header.set_mode(*mode);
        header.set_mtime(0);
        archive
            .append_data(&mut header, Path::new(name), *content)
            .with_context(|| format!("put {name} into the archive"))?;
    }
    archive.into_inner().context("close the archive")
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, io::Read};

    use super::*;

    fn files(archive: &[u8]) -> HashMap<String, Vec<u8>> {
        let mut archive = tar::Archive::new(archive);
        let entries = archive.entries().expect("an archive");
        let read = entries.map(|entry| {
            let mut entry = entry.expect("an entry");
            let name = entry.path().expect("a name").display().to_string();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).expect("content");
            (name, content)
        });
        read.collect()
    }

    #[test]
    fn every_digest_leads_to_what_it_is_of() {
        let image = image(b"binary", "portolan:1", "amd64").expect("an image");
        let files = files(&image);
        let blob = |descriptor: &Value| {
            let digest = descriptor["digest"].as_str().expect("a digest");
            let content = &files[&format!("blobs/sha256/{}", digest.trim_start_matches("sha256:"))];
            assert_eq!(digest, Blob::new("", content.clone()).digest());
            assert_eq!(descriptor["size"], content.len());
            content.clone()
        };
        let index: Value = serde_json::from_slice(&files["index.json"]).expect("JSON");
        assert_eq!(
            index["manifests"][0]["annotations"]["io.containerd.image.name"],
            "docker.io/library/portolan:1"
        );
        let manifest: Value = serde_json::from_slice(&blob(&index["manifests"][0])).expect("JSON");
        let config: Value = serde_json::from_slice(&blob(&manifest["config"])).expect("JSON");
        let layer = blob(&manifest["layers"][0]);
        assert_eq!(
            config["rootfs"]["diff_ids"][0],
            manifest["layers"][0]["digest"]
        );
        assert_eq!(self::files(&layer)["portolan"], b"binary");
    }

    #[test]
    fn a_program_that_wants_a_dynamic_linker_is_told_from_one_that_does_not() {
        let own = fs::read(std::env::current_exe().expect("this program")).expect("its file");
        assert!(interpreter(&own).expect("it is dynamic").contains("ld"));
        assert_eq!(interpreter(b"no ELF file"), None);
    }
}
