// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The chosen toolchain, and the file with `key=value` lines from which
//! proxy-user/datapath/build.rs reads it.

use std::{
    collections::BTreeMap,
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;

use super::search::{Compiler, Linker};
use crate::{cargo, command, fs, host};

/// The Rust target of the kernel programs.
pub(crate) const TARGET: &str = "bpfel-unknown-none";

/// The toolchain that builds the kernel programs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Toolchain {
    pub(crate) cargo: PathBuf,
    pub(crate) rustc: PathBuf,
    pub(crate) linker: PathBuf,
    /// Whether the crate `core` must be built from source: the compiler has none for the target.
    pub(crate) build_std: bool,
    /// The output of `rustc --version` at the test: an updated compiler is tested again.
    version: String,
}

/// Returns the file's path: in the cache, or as PORTOLAN_TOOLCHAIN_FILE says.
pub(crate) fn file(cache: &Path) -> PathBuf {
    env::var_os("PORTOLAN_TOOLCHAIN_FILE").map_or_else(|| cache.join("toolchain"), PathBuf::from)
}

impl Toolchain {
    pub(super) fn new(compiler: &Compiler, linker: &Linker) -> Self {
        Self {
            cargo: compiler.cargo.clone(),
            rustc: compiler.rustc.clone(),
            linker: linker.path.clone(),
            build_std: !compiler.bpf_core,
            version: compiler.version.clone(),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let values: BTreeMap<_, _> = text
            .lines()
            .filter_map(|line| line.split_once('='))
            .collect();
        let path = |key| values.get(key).map(PathBuf::from);
        Some(Self {
            cargo: path("cargo")?,
            rustc: path("rustc")?,
            linker: path("linker")?,
            build_std: values.get("build-std") == Some(&"1"),
            version: (*values.get("rustc-version")?).to_owned(),
        })
    }

    fn text(&self) -> String {
        format!(
            "cargo={}\nrustc={}\nlinker={}\nrustc-version={}\n{}",
            self.cargo.display(),
            self.rustc.display(),
            self.linker.display(),
            self.version,
            if self.build_std { "build-std=1\n" } else { "" }
        )
    }

    /// Returns the toolchain in the file if its programs exist and its compiler is the same.
    pub(super) fn still_valid(file: &Path) -> Option<Self> {
        let toolchain = Self::parse(&fs::read_to_string(file).ok()?)?;
        let there = host::is_executable(&toolchain.cargo) && host::is_executable(&toolchain.rustc);
        let runs = |program: &Path| {
            let mut command = command::of(program, "--version");
            command::output(&mut command, "ask for the version").ok()
        };
        let same = there && runs(&toolchain.rustc)?.trim() == toolchain.version;
        (same && runs(&toolchain.linker).is_some()).then_some(toolchain)
    }

    /// Replaces the toolchain's file atomically, and only if its content changes: a newer file
    /// makes every clone build the kernel programs again.
    pub(super) fn written(self, file: &Path) -> Result<Self> {
        let text = self.text();
        if fs::read_to_string(file).is_ok_and(|old| old == text) {
            return Ok(self);
        }
        fs::replace(file, text)?;
        Ok(self)
    }

    pub(super) fn summary(&self) -> String {
        let std = if self.build_std {
            ", building core from rust-src"
        } else {
            ""
        };
        format!("{}{std}; {}", self.version, self.linker.display())
    }

    /// Returns a cargo command for the kernel programs, in the environment that
    /// proxy-user/datapath/build.rs uses.
    pub(crate) fn command(&self, cargo: &Path, subcommand: &str, rustflags: &[&str]) -> Command {
        let mut command = Command::new(cargo);
        command
            .arg(subcommand)
            .args(["--target", TARGET, "--release", "--locked"])
            .args(self.build_std.then_some("-Zbuild-std=core"))
            .current_dir(cargo::root())
            .env("CARGO", &self.cargo)
            .env("RUSTC", &self.rustc)
            .env("CARGO_ENCODED_RUSTFLAGS", rustflags.join("\x1f"))
            .env("CARGO_PROFILE_RELEASE_PANIC", "abort");
        if !self.build_std {
            let crates = "aya_ebpf,aya_log_ebpf,portolan,proxy_ebpf";
            command.env("RUSTC_BOOTSTRAP", crates);
        }
        cargo::remove_own_variables(&mut command);
        let inherited =
            "RUSTFLAGS RUSTC_WRAPPER RUSTC_WORKSPACE_WRAPPER CLIPPY_ARGS RUSTUP_TOOLCHAIN";
        for name in inherited.split(' ') {
            command.env_remove(name);
        }
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn debian() -> Toolchain {
        Toolchain {
            cargo: "/opt/rust/bin/cargo".into(),
            rustc: "/usr/bin/rustc".into(),
            linker: "/cache/bpf-linker".into(),
            build_std: false,
            version: "rustc 1.96.0".to_owned(),
        }
    }

    #[test]
    fn the_file_reads_back_what_was_written() {
        for build_std in [false, true] {
            let toolchain = Toolchain {
                build_std,
                ..debian()
            };
            assert_eq!(Toolchain::parse(&toolchain.text()), Some(toolchain));
        }
    }

    #[test]
    fn an_unchanged_toolchain_file_is_not_written_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("toolchain");
        let time_of_writing = || {
            debian().written(&file).expect("written");
            let metadata = std::fs::metadata(&file);
            metadata.and_then(|file| file.modified()).expect("its time")
        };
        assert_eq!(time_of_writing(), time_of_writing());
    }
}
