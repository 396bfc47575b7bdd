// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Builds the cluster's images: those that Kubernetes' e2e tests start, with the names that these
//! tests use, and the agent's. Called by `cluster up`.

use std::{
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use anyhow::{Context, Result};

use super::{daemon::run, tools::Tools};
use crate::{
    arch::Arch,
    command, fs, image,
    oci::{self, Blob, Image},
    setup,
};

pub(super) const PAUSE: &str = "registry.k8s.io/pause:3.10.1";
/// The image of `PAUSE` with the name in Kubernetes' e2e tests.
const PAUSE_OF_TESTS: &str = "registry.k8s.io/pause:3.10.2";
pub(super) const AGNHOST: &str = "registry.k8s.io/e2e-test-images/agnhost:2.63.0";
const BUSYBOX: &str = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1";
/// An image with glibc's resolver, for the e2e tests of DNS.
const GLIBC_DNS: &str = "registry.k8s.io/e2e-test-images/glibc-dns-testing:2.0.0";
/// An image with conntrack and iptables, for the e2e tests of KubeProxy.
const IPTABLES: &str = "registry.k8s.io/build-image/distroless-iptables:v0.9.6";
/// The name of kube-proxy's image in `xtask/cluster/kube-proxy.yaml`.
const KUBE_PROXY: &str = "registry.k8s.io/kube-proxy:v1.36.3";
const REGRESSION: &str = "registry.k8s.io/e2e-test-images/regression-issue-74839:1.4";

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
        let metadata = self
            .file
            .metadata()
            .context("look at an archive of images")?;
        let modified = metadata.modified()?.duration_since(UNIX_EPOCH)?;
        Ok(format!("{} {}", metadata.len(), modified.as_nanos()))
    }
}

/// The images that Kubernetes' e2e tests start: name, layers, entry point and argument. The layers
/// are a minimal Debian with `PACKAGES` (`system`), single programs, and what agnhost needs beside
/// it: a DNS server to start, and a certificate for its HTTPS server.
const IMAGES: [[&str; 4]; 8] = [
    [PAUSE, "agnhost", "/agnhost", "pause"],
    [PAUSE_OF_TESTS, "agnhost", "/agnhost", "pause"],
    [AGNHOST, "system agnhost beside", "/agnhost", "pause"],
    [BUSYBOX, "system", "", "sh"],
    [GLIBC_DNS, "system", "", "sh"],
    [IPTABLES, "system", "", "sh"],
    [
        KUBE_PROXY,
        "system kube-proxy",
        "/usr/local/bin/kube-proxy",
        "",
    ],
    [REGRESSION, "regression", "/regression-issue-74839", ""],
];

/// Builds the images that Kubernetes' e2e tests start, once per user of this machine.
pub(super) fn of_tests(tools: &Tools) -> Result<Archive> {
    let cache = setup::cache_dir()?;
    let file = cache.join(format!("cluster-images-{EDITION}.tar"));
    if !file.exists() {
        let system = cache.join(format!("cluster-system-{SYSTEM}.tar"));
        if !system.exists() {
            make_system(&cache, &system)?;
        }
        let program = |path: &str, name: &str| {
            let binary = fs::read(tools.kubernetes(name))?;
            anyhow::Ok(Blob::layer(oci::tar(&[(path, 0o755, binary)])?))
        };
        let key = rcgen::generate_simple_self_signed(["localhost".to_owned()])
            .context("make a certificate for the tests' servers")?;
        let beside_agnhost = oci::tar(&[
            ("coredns", 0o755, fs::read(tools.coredns())?),
            ("localhost.crt", 0o644, key.cert.pem().into()),
            (
                "localhost.key",
                0o644,
                key.signing_key.serialize_pem().into(),
            ),
        ])?;
        let layers = [
            ("system", Blob::layer(fs::read(&system)?)),
            ("agnhost", program("agnhost", "agnhost")?),
            ("beside", Blob::layer(beside_agnhost)),
            (
                "kube-proxy",
                program("usr/local/bin/kube-proxy", "kube-proxy")?,
            ),
            (
                "regression",
                program("regression-issue-74839", "regression-issue-74839")?,
            ),
        ];
        let blob = |wanted: &str| layers.iter().find(|(layer, _)| *layer == wanted);
        let images = IMAGES.map(|[name, layers, entrypoint, argument]| Image {
            name,
            arch: Arch::OWN,
            layers: layers
                .split(' ')
                .filter_map(blob)
                .map(|(_, blob)| blob)
                .collect(),
            entrypoint: entrypoint.split_whitespace().collect(),
            arguments: argument.split_whitespace().collect(),
            labels: &[],
        });
        fs::replace(&file, oci::archive(&images)?)?;
    }
    Ok(Archive {
        name: "tests",
        file,
        images: IMAGES.map(|[name, ..]| name.to_owned()).into(),
    })
}

/// Builds the images that the Gateway API's conformance suite starts, from its echo server.
pub(super) fn of_gateways(echo: &Path) -> Result<Archive> {
    let layer = Blob::layer(oci::tar(&[("echo-basic", 0o755, fs::read(echo)?)])?);
    let images = ECHO.map(|name| Image {
        name,
        arch: Arch::OWN,
        layers: vec![&layer],
        entrypoint: vec!["/echo-basic"],
        arguments: Vec::new(),
        labels: &[],
    });
    let file = setup::cache_dir()?.join("cluster-images-gateway.tar");
    fs::replace(&file, oci::archive(&images)?)?;
    Ok(Archive {
        name: "gateway",
        file,
        images: images.iter().map(|image| image.name.to_owned()).collect(),
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
    let mut command = command::of("tar", excluded);
    command
        .args(["--numeric-owner", "--create", "--file"])
        .arg(&partial);
    run(command.arg("--directory").arg(&folder).arg("."))?;
    fs::rename(&partial, file)?;
    fs::remove_dir_all(&folder)
}

/// Builds the agent's image as `cargo xtask image` does.
pub(super) fn of_agent() -> Result<Archive> {
    let built = image::archive(image::NAME, env!("CARGO_PKG_VERSION"))?;
    Ok(Archive {
        name: "portolan",
        file: built,
        images: vec![oci::full_name(&format!(
            "{}:{}",
            image::NAME,
            env!("CARGO_PKG_VERSION")
        ))],
    })
}
