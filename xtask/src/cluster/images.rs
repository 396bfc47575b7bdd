// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Builds the cluster's images: those that Kubernetes' e2e tests start, with the names that these
//! tests use, and the agent's. Called by `cluster up`.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use anyhow::{Context, Result};
use serde_json::json;

use super::{Tools, control::run};
use crate::{
    command,
    cross::Arch,
    fs,
    oci::{self, Blob, Image},
    setup,
};

pub(super) const PAUSE: &str = "registry.k8s.io/pause:3.10.1";

/// The echo server of the Gateway API's conformance suite, under the names in its manifests.
const ECHO: [&str; 2] = [
    "registry.k8s.io/gateway-api/conformance/echo-basic:v0.1.0",
    "registry.k8s.io/gateway-api/conformance/echo-basic:v0.2.0",
];

/// Debian packages of the programs that Kubernetes' e2e tests call in their containers.
const PACKAGES: &str = "ca-certificates,conntrack,curl,dnsutils,iproute2,iptables,iputils-ping,netcat-openbsd,nftables,wget";
const RELEASE: &str = "bookworm";
/// Version of the cached layer with `PACKAGES`: increase it when the packages change.
const SYSTEM: u32 = 2;
/// Version of the cached archive of images: increase it when the images' content changes.
const EDITION: u32 = 4;

/// An archive file with images, which containerd can import.
pub(super) struct Archive {
    pub(super) name: &'static str,
    pub(super) file: PathBuf,
    pub(super) images: Vec<String>,
}

impl Archive {
    /// Returns the file's size and modification time, which change when it is written again.
    pub(super) fn version(&self) -> Result<String> {
        let metadata = self.file.metadata();
        let metadata = metadata.context("look at an archive of images")?;
        let modified = metadata.modified()?.duration_since(UNIX_EPOCH)?;
        Ok(format!("{} {}", metadata.len(), modified.as_nanos()))
    }
}

/// The images that Kubernetes' e2e tests start: name, layers, entry point and argument. The layers
/// are a minimal Debian with `PACKAGES` (`system`), single programs by their paths, and what
/// agnhost needs beside it: a DNS server to start, and a certificate for its HTTPS server. Of the
/// images with Debian alone, one is for tests of DNS by glibc, and one has conntrack and iptables
/// for those of kube-proxy. kube-proxy's own has the name in `xtask/cluster/kube-proxy.yaml`.
const IMAGES: &str = include_str!("../../cluster/images.txt");

/// Builds the images that Kubernetes' e2e tests start, once per user of this machine.
pub(super) fn of_tests(tools: &Tools) -> Result<Archive> {
    let cache = setup::cache_dir()?;
    let rows = IMAGES.lines();
    let rows: Vec<Vec<_>> = rows.map(|line| line.split(' ').collect()).collect();
    let archive = Archive {
        name: "tests",
        file: cache.join(format!("cluster-images-{EDITION}.tar")),
        images: rows.iter().map(|row| row[0].to_owned()).collect(),
    };
    if archive.file.exists() {
        return Ok(archive);
    }
    let system = cache.join(format!("cluster-system-{SYSTEM}.tar"));
    if !system.exists() {
        make_system(&cache, &system)?;
    }
    let key = rcgen::generate_simple_self_signed(["localhost".to_owned()])
        .context("make a certificate for the tests' servers")?;
    let (certificate, secret) = (key.cert.pem(), key.signing_key.serialize_pem());
    let beside_agnhost = oci::tar(&[
        ("coredns", 0o755, fs::read(tools.coredns())?),
        ("localhost.crt", 0o644, certificate.into()),
        ("localhost.key", 0o644, secret.into()),
    ])?;
    let mut layers = BTreeMap::from([
        ("system", Blob::layer(fs::read(&system)?)),
        ("beside", Blob::layer(beside_agnhost)),
    ]);
    for path in rows.iter().flat_map(|row| row[1].split(',')) {
        if !layers.contains_key(path) {
            let name = path.rsplit('/').next().unwrap_or(path);
            let program = fs::read(tools.kubernetes(name))?;
            layers.insert(path, Blob::of_file(path, &program)?);
        }
    }
    let labels = json!({});
    let words = |word: &'static str| word.split(',').filter(|word| *word != "-").collect();
    let images = rows.iter().map(|row| Image {
        name: row[0],
        arch: Arch::OWN,
        layers: row[1].split(',').map(|path| &layers[path]).collect(),
        entrypoint: words(row[2]),
        arguments: words(row[3]),
        labels: &labels,
    });
    fs::replace(&archive.file, oci::archive(&images.collect::<Vec<_>>())?)?;
    Ok(archive)
}

/// Builds the images that the Gateway API's conformance suite starts, from its echo server.
pub(super) fn of_gateways(echo: &Path) -> Result<Archive> {
    let layer = Blob::of_file("echo-basic", &fs::read(echo)?)?;
    let labels = json!({});
    let images = ECHO.map(|name| Image {
        name,
        arch: Arch::OWN,
        layers: vec![&layer],
        entrypoint: vec!["/echo-basic"],
        arguments: Vec::new(),
        labels: &labels,
    });
    let file = setup::cache_dir()?.join("cluster-images-gateway.tar");
    fs::replace(&file, oci::archive(&images)?)?;
    Ok(Archive {
        name: "gateway",
        file,
        images: ECHO.map(str::to_owned).into(),
    })
}

/// Builds a layer with a minimal Debian and `PACKAGES`, as a tar file.
fn make_system(cache: &Path, file: &Path) -> Result<()> {
    let folder = cache.join(format!("cluster-system-{SYSTEM}"));
    fs::remove_dir_all(&folder)?;
    let arguments = format!("--variant=minbase --include={PACKAGES} {RELEASE}");
    let mut command = command::of("debootstrap", &arguments);
    run(command.arg(&folder)).context("make a small Debian for the images")?;
    let partial = file.with_extension("partial");
    let excluded = "--exclude=./dev/* --exclude=./var/cache/apt/* --exclude=./var/lib/apt/lists/* \
        --exclude=./usr/share/doc/* --exclude=./usr/share/locale/* --exclude=./usr/share/man/*";
    let words = format!("{excluded} --numeric-owner --create --directory");
    let mut command = command::of("tar", &words);
    run(command.arg(&folder).arg("--file").arg(&partial).arg("."))?;
    fs::rename(&partial, file)?;
    fs::remove_dir_all(&folder)
}

/// Builds the agent's image as `cargo xtask image` does.
pub(super) fn of_agent() -> Result<Archive> {
    Ok(Archive {
        name: "portolan",
        file: crate::image::archive()?,
        images: vec![oci::full_name(&crate::image::name())],
    })
}
