// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Builds the cluster's images: those that Kubernetes' e2e tests start, with the names that these
//! tests use, and the agent's. Called by `cluster up`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::UNIX_EPOCH,
};

use anyhow::{Context, Result};

use super::{daemon::run, tools::Tools};
use crate::{
    arch::Arch,
    image,
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
        let metadata =
            fs::metadata(&self.file).with_context(|| format!("look at {}", self.file.display()))?;
        let modified = metadata.modified()?.duration_since(UNIX_EPOCH)?;
        Ok(format!("{} {}", metadata.len(), modified.as_nanos()))
    }
}

/// Builds the images that Kubernetes' e2e tests start, once per user of this machine.
pub(super) fn of_tests(tools: &Tools) -> Result<Archive> {
    let cache = setup::cache_dir()?;
    let file = cache.join(format!("cluster-images-{EDITION}.tar"));
    if !file.exists() {
        let system = cache.join(format!("cluster-system-{SYSTEM}.tar"));
        if !system.exists() {
            make_system(&cache, &system)?;
        }
        let system = Blob::layer(read(&system)?);
        let program_at = |path: &str, name: &str| {
            let binary = read(Path::new(&tools.kubernetes(name)))?;
            anyhow::Ok(Blob::layer(oci::tar(&[(path.to_owned(), 0o755, &binary)])?))
        };
        let program = |name: &str| program_at(name, name);
        let (agnhost, regression) = (program("agnhost")?, program("regression-issue-74839")?);
        let kube_proxy = program_at("usr/local/bin/kube-proxy", "kube-proxy")?;
        let dns = read(Path::new(&tools.coredns()))?;
        let key = rcgen::generate_simple_self_signed(["localhost".to_owned()])
            .context("make a certificate for the tests' servers")?;
        // Files that agnhost needs: a DNS server to start, and a certificate for its HTTPS server.
        let beside_agnhost = Blob::layer(oci::tar(&[
            ("coredns".to_owned(), 0o755, &dns),
            ("localhost.crt".to_owned(), 0o644, key.cert.pem().as_bytes()),
            (
                "localhost.key".to_owned(),
                0o644,
                key.signing_key.serialize_pem().as_bytes(),
            ),
        ])?);
        let image = |name, layers, entrypoint, arguments| Image {
            name,
            arch: Arch::OWN,
            layers,
            entrypoint,
            arguments,
            labels: &[],
        };
        let pause = |name| image(name, vec![&agnhost], vec!["/agnhost"], vec!["pause"]);
        let shell = |name| image(name, vec![&system], vec![], vec!["sh"]);
        let images = [
            pause(PAUSE),
            pause(PAUSE_OF_TESTS),
            image(
                AGNHOST,
                vec![&system, &agnhost, &beside_agnhost],
                vec!["/agnhost"],
                vec!["pause"],
            ),
            shell(BUSYBOX),
            shell(GLIBC_DNS),
            shell(IPTABLES),
            image(
                KUBE_PROXY,
                vec![&system, &kube_proxy],
                vec!["/usr/local/bin/kube-proxy"],
                vec![],
            ),
            image(
                REGRESSION,
                vec![&regression],
                vec!["/regression-issue-74839"],
                vec![],
            ),
        ];
        let partial = file.with_extension("partial");
        fs::write(&partial, oci::archive(&images)?)
            .and_then(|()| fs::rename(&partial, &file))
            .with_context(|| format!("write {}", file.display()))?;
    }
    Ok(Archive {
        name: "tests",
        file,
        images: [
            PAUSE,
            PAUSE_OF_TESTS,
            AGNHOST,
            BUSYBOX,
            GLIBC_DNS,
            IPTABLES,
            KUBE_PROXY,
            REGRESSION,
        ]
        .map(str::to_owned)
        .into(),
    })
}

/// Builds a layer with a minimal Debian and `PACKAGES`, as a tar file.
fn make_system(cache: &Path, file: &Path) -> Result<()> {
    let folder = cache.join(format!("cluster-system-{SYSTEM}"));
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    run(Command::new("debootstrap")
        .args([
            "--variant=minbase",
            &format!("--include={PACKAGES}"),
            RELEASE,
        ])
        .arg(&folder))
    .context("make a small Debian for the images")?;
    let partial = file.with_extension("partial");
    run(Command::new("tar")
        .arg("--directory")
        .arg(&folder)
        .args(["--exclude=./dev/*", "--exclude=./var/cache/apt/*"])
        .args([
            "--exclude=./var/lib/apt/lists/*",
            "--exclude=./usr/share/doc/*",
        ])
        .args([
            "--exclude=./usr/share/locale/*",
            "--exclude=./usr/share/man/*",
        ])
        .args(["--numeric-owner", "--create", "--file"])
        .arg(&partial)
        .arg("."))?;
    fs::rename(&partial, file).with_context(|| format!("name {}", file.display()))?;
    fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))
}

/// Gives the agent's image another tag on every node.
pub(super) fn tag_agent(tools: &Tools, tag: &str) -> Result<()> {
    let name = |tag: &str| oci::full_name(&format!("{}:{tag}", image::NAME));
    let (present, other) = (name(env!("CARGO_PKG_VERSION")), name(tag));
    for node in &super::layout::NODES {
        super::node::ctr(tools, node, &["images", "tag", "--force", &present, &other])?;
    }
    Ok(())
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

fn read(file: &Path) -> Result<Vec<u8>> {
    fs::read(file).with_context(|| format!("read {}", file.display()))
}
