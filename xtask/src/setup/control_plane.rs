// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A real kube-apiserver, etcd and kubectl for the tests: found as envtest finds them, else built once from
//! the Go modules that xtask/control-plane names. Called by `test` and `conformance`.

use std::{
    env, fs,
    hash::{DefaultHasher, Hasher},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};

use super::{cache_dir, install, progress::Progress};
use crate::{cargo, host};

/// The folder of ready programs, by envtest's convention.
const VARIABLE: &str = "KUBEBUILDER_ASSETS";

/// The programs and the Go packages that they are built from.
const PROGRAMS: [(&str, &str); 3] = [
    ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
    ("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
    ("etcd", "go.etcd.io/etcd/server/v3"),
];
/// What Go calls etcd's program: its package's last part.
const ETCD_AS_BUILT: &str = "server";
const MODULE: &str = "k8s.io/kubernetes";

/// Tells a command where the programs are; builds them if need be.
pub(crate) fn offer(command: &mut Command) -> Result<()> {
    command.env(VARIABLE, find()?);
    Ok(())
}

fn find() -> Result<PathBuf> {
    if let Some(folder) = env::var_os(VARIABLE).filter(|folder| !folder.is_empty()) {
        let folder = PathBuf::from(folder);
        ensure!(
            is_whole(&folder),
            "{VARIABLE} names {}, which lacks one of kube-apiserver, kubectl and etcd; complete it, or unset \
             {VARIABLE} to have them built",
            folder.display()
        );
        return Ok(folder);
    }
    let module = cargo::root().join("xtask/control-plane");
    let read = |name: &str| {
        let file = module.join(name);
        fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))
    };
    let (go_mod, go_sum) = (read("go.mod")?, read("go.sum")?);
    let mut hasher = DefaultHasher::new();
    hasher.write(go_mod.as_bytes());
    hasher.write(go_sum.as_bytes());
    let cache = cache_dir()?;
    let place = cache.join(format!("control-plane-{:016x}", hasher.finish()));
    if !is_whole(&place) {
        let version = version_in(&go_mod).context("xtask/control-plane/go.mod names no version")?;
        build(&cache, &module, &place, version)?;
    }
    Ok(place)
}

fn is_whole(folder: &Path) -> bool {
    PROGRAMS
        .iter()
        .all(|(name, _)| host::is_executable(&folder.join(name)))
}

/// Kubernetes' version in a go.mod.
fn version_in(go_mod: &str) -> Option<&str> {
    go_mod
        .lines()
        .filter_map(|line| {
            line.trim()
                .trim_start_matches("require ")
                .strip_prefix(MODULE)
        })
        .find_map(|rest| rest.trim().split(' ').next())
        .filter(|version| version.starts_with('v'))
}

/// Go, where its packages and its own installer put it.
fn go() -> Option<PathBuf> {
    let usual = Path::new("/usr/local/go/bin/go");
    host::find_program("go").or_else(|| host::is_executable(usual).then(|| usual.to_owned()))
}

/// Builds beside the place, so that the place holds all or nothing.
fn build(cache: &Path, module: &Path, place: &Path, version: &str) -> Result<()> {
    let progress = Progress::start();
    let Some(go) = go() else {
        bail!(
            "the tests against a real API server need kube-apiserver, kubectl and etcd. Install Go 1.26 \
             (https://go.dev/dl), with which they are built, or name a folder that holds them with {VARIABLE}"
        );
    };
    progress.step(&format!(
        "building kube-apiserver, kubectl {version} and etcd with Go (4 to 8 minutes, once per user)"
    ));
    let partial = place.with_extension("partial");
    install::remove(&partial)?;
    fs::create_dir_all(&partial).with_context(|| format!("make {}", partial.display()))?;
    let plain = version.trim_start_matches('v');
    let mut parts = plain.split('.');
    let (major, minor) = (parts.next().unwrap_or("1"), parts.next().unwrap_or("0"));
    let package = "k8s.io/component-base/version";
    let mut command = Command::new(go);
    command
        .args(["build", "-mod=readonly", "-trimpath", "-ldflags"])
        .arg(format!(
            "-s -w -X {package}.gitVersion={version} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"
        ))
        .arg("-o")
        .arg(format!("{}/", partial.display()))
        .args(PROGRAMS.map(|(_, package)| package))
        .current_dir(module)
        .env("CGO_ENABLED", "0");
    install::logged(cache, &mut command, "build the control plane")?;
    fs::rename(partial.join(ETCD_AS_BUILT), partial.join("etcd")).context("name etcd")?;
    install::remove(place)?;
    fs::rename(&partial, place)
        .with_context(|| format!("move the control plane to {}", place.display()))?;
    progress.step("control plane built");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_the_modules() {
        let text = "module x\n\nrequire k8s.io/kubernetes v1.36.3 // indirect\n";
        assert_eq!(version_in(text), Some("v1.36.3"));
        let text = "require (\n\tk8s.io/kubernetes v1.36.3\n)";
        assert_eq!(version_in(text), Some("v1.36.3"));
        assert_eq!(version_in("require example.com/x v1.0.0"), None);
        assert_eq!(
            version_in(include_str!("../../control-plane/go.mod")),
            Some("v1.36.3")
        );
    }
}
