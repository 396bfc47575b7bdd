// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Builds programs of the Go modules below xtask/go into the user's cache, each once: Kubernetes'
//! own programs and others that the tests, the cluster and the benchmarks run. One module has a
//! program of this project. xtask/go/programs.txt lists them.

use std::{env, path::PathBuf, process::Command};

use anyhow::{Context, Result, ensure};

use super::{cache_dir, install, step};
use crate::{cargo, fs, host};

const PROGRAMS: &str = include_str!("../../go/programs.txt");

/// The environment variable with the folder of a control plane's programs, by envtest's convention.
const ASSETS: &str = "KUBEBUILDER_ASSETS";
pub(crate) const CONTROL_PLANE: &str = "kube-apiserver kubectl etcd";

/// Sets `ASSETS` in the environment of a command that starts an API server.
pub(crate) fn offer_control_plane(command: &mut Command) -> Result<()> {
    command.env(ASSETS, control_plane()?);
    Ok(())
}

/// Returns the folder with kube-apiserver, etcd and kubectl: envtest's, or that of built ones.
pub(crate) fn control_plane() -> Result<PathBuf> {
    let Some(folder) = env::var_os(ASSETS).filter(|folder| !folder.is_empty()) else {
        return programs("kubernetes", CONTROL_PLANE);
    };
    let folder = PathBuf::from(folder);
    let mut names = CONTROL_PLANE.split(' ');
    ensure!(
        names.all(|name| host::is_executable(&folder.join(name))),
        "{ASSETS} names {}, which lacks one of {CONTROL_PLANE}; complete it, or unset {ASSETS} to have them built",
        folder.display()
    );
    Ok(folder)
}

fn source(module: &str) -> PathBuf {
    cargo::root().join("xtask/go").join(module)
}

/// Returns the cache's folder for a module's programs as it is now: go.mod and go.sum pin all.
fn cached(module: &str) -> Result<PathBuf> {
    let mut files = fs::children(&source(module))?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "go"));
    files.sort();
    let pinned = ["go.mod", "go.sum"].map(|name| source(module).join(name));
    files.splice(0..0, pinned);
    let texts: Vec<_> = files.iter().map(fs::read).collect::<Result<_>>()?;
    let digest = &fs::sha256(texts.concat())[..32];
    Ok(cache_dir()?.join(format!("{module}-{digest}")))
}

/// Returns true if all these programs have been built, names with a space between.
pub(crate) fn has(module: &str, names: &str) -> bool {
    let is_there = |folder: PathBuf| {
        let mut names = names.split(' ');
        names.all(|name| host::is_executable(&folder.join(name)))
    };
    cached(module).is_ok_and(is_there)
}

/// Returns the path of a program; builds it if it is missing.
pub(crate) fn program(module: &str, name: &str) -> Result<PathBuf> {
    Ok(programs(module, name)?.join(name))
}

/// Returns the folder with these programs, names with a space between. Builds the missing ones.
pub(crate) fn programs(module: &str, names: &str) -> Result<PathBuf> {
    let folder = cached(module)?;
    if !has(module, names) {
        let _lock = super::lock()?;
        for name in names.split(' ').filter(|name| !has(module, name)) {
            build(module, name).with_context(|| format!("build {name} with Go"))?;
        }
    }
    Ok(folder)
}

/// Builds a program under a temporary name first: one with the final name is complete.
fn build(module: &str, name: &str) -> Result<()> {
    let mut lines = PROGRAMS.lines();
    let head = lines.find_map(|line| line.strip_prefix(module)?.strip_prefix(' '));
    let head = head.and_then(|head| head.split_once(' '));
    let (versioned, takes) = head.context("no such module")?;
    let mut rows = lines.map_while(|line| line.strip_prefix("  "));
    let row = rows.find_map(|row| row.strip_prefix(name)?.strip_prefix(' '));
    let row = row.context("the module has no such program")?;
    let (package, how) = row.split_once(' ').unwrap_or((row, ""));
    let go_mod = fs::read_to_string(source(module).join("go.mod"))?;
    let words: Vec<_> = go_mod.split_whitespace().collect();
    let mut pairs = words.windows(2);
    let version = pairs.find(|pair| pair[0] == versioned && pair[1].starts_with('v'));
    let version = version.context("go.mod has no version")?[1];
    let what = format!("building {name} {version} with Go ({takes}, once per user)");
    step("setup", &what);
    let go = host::find_program("go").or_else(|| host::find_program("/usr/local/go/bin/go"));
    let go = go.context("Go 1.26 or newer is missing: install it (https://go.dev/dl)")?;
    let folder = cached(module)?;
    fs::create_dir_all(&folder)?;
    let partial = folder.join(format!("{name}.partial"));
    let mut parts = version.trim_start_matches('v').split('.');
    let (major, minor) = (parts.next().unwrap_or("1"), parts.next().unwrap_or("0"));
    let variables = "-X k8s.io/component-base/version";
    let mut command = Command::new(go);
    match how {
        "tests" => command.args(["test", "-c"]),
        "c" | "" => command.arg("build"),
        tags => command.args(["build", "-tags", tags]),
    };
    command
        .args(["-mod=readonly", "-trimpath", "-ldflags"])
        // Go ignores these flags for programs without the variables.
        .arg(format!(
            "-s -w {variables}.gitVersion={version} {variables}.gitMajor={major} {variables}.gitMinor={minor}"
        ))
        .arg("-o")
        .arg(&partial)
        .arg(package)
        .current_dir(source(module))
        .env("CGO_ENABLED", if how == "c" { "1" } else { "0" })
        // A go.mod may name a newer Go, which Go gets from its module proxy.
        .env("GOTOOLCHAIN", "auto");
    install::logged(&mut command, "go build")?;
    fs::rename(&partial, &folder.join(name))
}
