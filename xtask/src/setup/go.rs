// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Builds programs of the Go modules below xtask/go into the user's cache, each once: Kubernetes'
//! own programs and others that the tests, the cluster and the benchmarks run. Called by
//! `control_plane`, `cluster`, `lab` and others.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use super::{cache_dir, install, progress::Progress};
use crate::{cargo, host};

/// A Go module below xtask/go. Its go.mod and go.sum pin all sources of its programs.
pub(crate) struct Module {
    pub(crate) folder: &'static str,
    /// The required Go module whose version the programs get.
    pub(crate) versioned: &'static str,
}

/// A program that is built in such a Go module.
#[derive(Clone, Copy)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) package: &'static str,
    /// Whether the program is built by `go test -c` from the package's tests.
    pub(crate) is_test: bool,
    /// Go's build tags, separated by commas.
    pub(crate) tags: &'static str,
}

impl Program {
    pub(crate) const fn new(name: &'static str, package: &'static str) -> Self {
        Self {
            name,
            package,
            is_test: false,
            tags: "",
        }
    }

    /// Returns the same program with these build tags.
    pub(crate) const fn tagged(self, tags: &'static str) -> Self {
        Self { tags, ..self }
    }
}

/// Returns true if all these programs have been built.
pub(crate) fn are_built(module: &Module, programs: &[Program]) -> bool {
    let source = cargo::root().join("xtask/go").join(module.folder);
    let read = |name: &str| fs::read_to_string(source.join(name)).ok();
    let (Some(go_mod), Some(go_sum), Ok(cache)) = (read("go.mod"), read("go.sum"), cache_dir())
    else {
        return false;
    };
    let place = cache.join(format!("{}-{}", module.folder, digest(&go_mod, &go_sum)));
    programs
        .iter()
        .all(|program| host::is_executable(&place.join(program.name)))
}

/// Returns the folder that contains these programs. Builds the missing ones; `takes` is a text for
/// the user about the duration.
pub(crate) fn programs(module: &Module, programs: &[Program], takes: &str) -> Result<PathBuf> {
    let source = cargo::root().join("xtask/go").join(module.folder);
    let read = |name: &str| {
        let file = source.join(name);
        fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))
    };
    let (go_mod, go_sum) = (read("go.mod")?, read("go.sum")?);
    let cache = cache_dir()?;
    let place = cache.join(format!("{}-{}", module.folder, digest(&go_mod, &go_sum)));
    let missing: Vec<_> = programs
        .iter()
        .filter(|program| !host::is_executable(&place.join(program.name)))
        .collect();
    if !missing.is_empty() {
        let Some(version) = version_of(module.versioned, &go_mod) else {
            bail!(
                "{} names no version of {}",
                source.join("go.mod").display(),
                module.versioned
            );
        };
        let progress = Progress::start();
        let _lock = super::lock(&cache, &progress)?;
        let names: Vec<_> = missing.iter().map(|program| program.name).collect();
        progress.step(&format!(
            "building {} {version} with Go ({takes}, once per user)",
            names.join(", ")
        ));
        for program in missing {
            build(&cache, &source, &place, program, version)?;
        }
        progress.step("built");
    }
    Ok(place)
}

/// Returns half of the SHA-256 of both files in hexadecimal. It names the programs' folder in the
/// cache, and does not depend on Rust's version.
fn digest(go_mod: &str, go_sum: &str) -> String {
    let digest = Sha256::new().chain_update(go_mod).chain_update(go_sum);
    let half = digest.finalize().into_iter().take(16);
    half.map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the version of a module that the text of a go.mod requires; None if it does not.
fn version_of<'a>(module: &str, go_mod: &'a str) -> Option<&'a str> {
    go_mod
        .lines()
        .filter_map(|line| {
            line.trim()
                .trim_start_matches("require ")
                .strip_prefix(module)
        })
        .find_map(|rest| rest.strip_prefix(' ')?.trim().split(' ').next())
        .filter(|version| version.starts_with('v'))
}

/// Returns the path of Go in PATH or where Go's own installer puts it; None if there is none.
fn go() -> Option<PathBuf> {
    let usual = Path::new("/usr/local/go/bin/go");
    host::find_program("go").or_else(|| host::is_executable(usual).then(|| usual.to_owned()))
}

/// Builds a program under a temporary name first, so that a program with the final name is
/// complete.
fn build(
    cache: &Path,
    source: &Path,
    place: &Path,
    program: &Program,
    version: &str,
) -> Result<()> {
    let Some(go) = go() else {
        bail!(
            "building {} needs Go 1.26 or newer: install it (https://go.dev/dl) and try again",
            program.name
        );
    };
    fs::create_dir_all(place).with_context(|| format!("make {}", place.display()))?;
    let partial = place.join(format!("{}.partial", program.name));
    let plain = version.trim_start_matches('v');
    let mut parts = plain.split('.');
    let (major, minor) = (parts.next().unwrap_or("1"), parts.next().unwrap_or("0"));
    let package = "k8s.io/component-base/version";
    let mut command = Command::new(go);
    if program.is_test {
        command.args(["test", "-c"]);
    } else {
        command.arg("build");
    }
    command
        .args(["-mod=readonly", "-trimpath", "-tags", program.tags])
        .arg("-ldflags")
        // Go ignores these flags for programs without the variables.
        .arg(format!(
            "-s -w -X {package}.gitVersion={version} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"
        ))
        .arg("-o")
        .arg(&partial)
        .arg(program.package)
        .current_dir(source)
        .env("CGO_ENABLED", "0");
    install::logged(cache, &mut command, &format!("build {}", program.name))?;
    let ready = place.join(program.name);
    fs::rename(&partial, &ready).with_context(|| format!("name {}", ready.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_the_same_everywhere_and_changes_with_either_file() {
        // `printf ab | sha256sum`
        assert_eq!(digest("a", "b"), "fb8e20fc2e4c3f248c60c39bd652f3c1");
        assert_ne!(digest("a", "b"), digest("a", "c"));
        assert_ne!(digest("a", "b"), digest("c", "b"));
    }

    #[test]
    fn the_version_is_the_modules() {
        let text = "module x\n\nrequire k8s.io/kubernetes v1.36.3 // indirect\n";
        assert_eq!(version_of("k8s.io/kubernetes", text), Some("v1.36.3"));
        let text = "require (\n\tk8s.io/kubernetes/x v1.0.0\n\tk8s.io/kubernetes v1.36.3\n)";
        assert_eq!(version_of("k8s.io/kubernetes", text), Some("v1.36.3"));
        assert_eq!(
            version_of("k8s.io/kubernetes", "require example.com/x v1.0.0"),
            None
        );
    }
}
