// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Builds programs of the Go modules below xtask/go into the user's cache, each once: Kubernetes'
//! own programs and others that the tests, the cluster and the benchmarks run. One module has a
//! program of this project. Called by `control_plane`, `cluster`, `lab` and others.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use super::{cache_dir, install, progress::Progress};
use crate::{cargo, fs, hash, host};

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
    /// Whether a C compiler takes part. The program then needs this machine's C library.
    pub(crate) has_c: bool,
}

impl Program {
    pub(crate) const fn new(name: &'static str, package: &'static str) -> Self {
        Self {
            name,
            package,
            is_test: false,
            tags: "",
            has_c: false,
        }
    }

    /// A program that is built from a package's tests.
    pub(crate) const fn of_tests(name: &'static str, package: &'static str) -> Self {
        let is_test = true;
        Self {
            is_test,
            ..Self::new(name, package)
        }
    }

    /// Returns the same program with parts in C.
    pub(crate) const fn with_c(self) -> Self {
        let has_c = true;
        Self { has_c, ..self }
    }

    /// Returns the same program with these build tags.
    pub(crate) const fn tagged(self, tags: &'static str) -> Self {
        Self { tags, ..self }
    }
}

impl Module {
    fn source(&self) -> PathBuf {
        cargo::root().join("xtask/go").join(self.folder)
    }

    /// Returns the folder in the cache for the programs of this module as it is now.
    fn programs_folder(&self) -> Result<PathBuf> {
        let read = |name: &str| fs::read_to_string(self.source().join(name));
        let mut texts = vec![read("go.mod")?, read("go.sum")?];
        let mut own = fs::children(&self.source())?;
        own.retain(|file| file.extension().is_some_and(|extension| extension == "go"));
        own.sort();
        for file in own {
            texts.push(fs::read_to_string(file)?);
        }
        let digest = digest(&texts);
        Ok(cache_dir()?.join(format!("{}-{digest}", self.folder)))
    }
}

fn missing<'a>(folder: &Path, programs: &'a [Program]) -> Vec<&'a Program> {
    let is_missing = |program: &&Program| !host::is_executable(&folder.join(program.name));
    programs.iter().filter(is_missing).collect()
}

/// Returns true if all these programs have been built.
pub(crate) fn are_built(module: &Module, programs: &[Program]) -> bool {
    let folder = module.programs_folder();
    folder.is_ok_and(|folder| missing(&folder, programs).is_empty())
}

/// Returns the folder that contains these programs. Builds the missing ones; `takes` is a text for
/// the user about the duration.
pub(crate) fn programs(module: &Module, programs: &[Program], takes: &str) -> Result<PathBuf> {
    let folder = module.programs_folder()?;
    let missing = missing(&folder, programs);
    if !missing.is_empty() {
        let go_mod = fs::read_to_string(module.source().join("go.mod"))?;
        let version = version_of(module.versioned, &go_mod).with_context(|| {
            format!(
                "xtask/go/{}/go.mod names no version of {}",
                module.folder, module.versioned
            )
        })?;
        let progress = Progress::start();
        let _lock = super::lock(&cache_dir()?, &progress)?;
        let names: Vec<_> = missing.iter().map(|program| program.name).collect();
        let names = names.join(", ");
        progress.step(&format!(
            "building {names} {version} with Go ({takes}, once per user)"
        ));
        for program in missing {
            build(&module.source(), &folder, program, version)?;
        }
        progress.step("built");
    }
    Ok(folder)
}

/// Returns half of the SHA-256 of a module's files in hexadecimal. It names the programs' folder in
/// the cache, and does not depend on Rust's version.
fn digest(texts: &[impl AsRef<str>]) -> String {
    let texts: Vec<_> = texts.iter().map(AsRef::as_ref).collect();
    let whole = hash::sha256(texts.concat());
    whole[..whole.len() / 2].to_owned()
}

/// Returns the version of a module that the text of a go.mod requires; None if it is missing there.
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

/// Returns the path of Go in PATH or where Go's own installer puts it; None if Go is missing.
fn go() -> Option<PathBuf> {
    let usual = Path::new("/usr/local/go/bin/go");
    host::find_program("go").or_else(|| host::is_executable(usual).then(|| usual.to_owned()))
}

/// Builds a program under a temporary name first, so that a program with the final name is
/// complete.
fn build(source: &Path, folder: &Path, program: &Program, version: &str) -> Result<()> {
    let name = program.name;
    let go = go().with_context(|| {
        format!("building {name} needs Go 1.26 or newer: install it (https://go.dev/dl)")
    })?;
    fs::create_dir_all(folder)?;
    let partial = folder.join(format!("{name}.partial"));
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
        .env("CGO_ENABLED", if program.has_c { "1" } else { "0" })
        // A go.mod may name a newer Go, which Go gets from its module proxy.
        .env("GOTOOLCHAIN", "auto");
    install::logged(&cache_dir()?, &mut command, &format!("build {name}"))?;
    fs::rename(&partial, &folder.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_module_digest_is_stable_and_changes_with_any_file() {
        // `printf ab | sha256sum`
        assert_eq!(digest(&["a", "b"]), "fb8e20fc2e4c3f248c60c39bd652f3c1");
        assert_ne!(digest(&["a", "b"]), digest(&["a", "c"]));
        assert_ne!(digest(&["a", "b"]), digest(&["c", "b"]));
        assert_ne!(digest(&["a", "b"]), digest(&["a", "b", "c"]));
    }
}
