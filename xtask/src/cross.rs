// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Builds for another architecture than this machine's, with Debian's cross compiler and Rust's
//! standard library for that architecture: an installed one if rustc has it, else that of Debian's
//! packages. Used by `image` and `kernels`.

use std::{os::unix::fs::symlink, path::PathBuf, process::Command};

use anyhow::{Context, Result, ensure};

use crate::{
    command, fs,
    kernels::apt::Apt,
    setup::{self, Needs},
};

/// A processor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Arch {
    Amd64,
    Arm64,
}

impl Arch {
    /// The architecture that xtask was built for.
    pub(crate) const OWN: Self = if cfg!(target_arch = "aarch64") {
        Self::Arm64
    } else {
        Self::Amd64
    };

    /// The architecture's name in Debian and OCI, e.g. `amd64`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// The architecture's name in GNU's tools, and of its folder of libraries in Debian.
    pub(crate) const fn gnu(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-linux-gnu",
            Self::Arm64 => "aarch64-linux-gnu",
        }
    }

    /// The architecture's target in rustc, with GNU's C library.
    pub(crate) const fn target(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-unknown-linux-gnu",
            Self::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }
}

/// Debian's packages of Rust's standard library and compiler.
const LIBRARY: &str = "libstd-rust-web-dev";
const COMPILER: &str = "rustc-web";

/// What cargo needs to build for the architecture `arch`.
pub(crate) struct Builder {
    arch: Arch,
    /// None for this machine's architecture, else the path of rustc and a sysroot with the standard
    /// library. The sysroot is None if rustc has that library itself.
    foreign: Option<(PathBuf, Option<PathBuf>)>,
}

impl Builder {
    pub(crate) fn new(arch: Arch) -> Result<Self> {
        let toolchain = setup::run(Needs::Build)?;
        let with = |foreign| Ok(Self { arch, foreign });
        if arch == Arch::OWN {
            return with(None);
        }
        let compiler = format!("gcc-{}", arch.gnu());
        let mut packages = vec![compiler, format!("libc6-dev-{}-cross", arch.name())];
        packages.retain(|package| version(package).is_err());
        setup::packages(&packages)?;
        let own = PathBuf::from("rustc");
        if has_library(&own, arch) {
            return with(Some((own, None)));
        }
        let target = arch.target();
        let lacks = format!("no standard library of Rust: `rustup target add {target}`");
        ensure!(!toolchain.build_std, lacks);
        let sysroot = library(arch).with_context(|| format!("{lacks}, or install {COMPILER}"))?;
        with(Some((toolchain.rustc, Some(sysroot))))
    }

    /// Returns true if this machine can run the built programs.
    pub(crate) fn is_native(&self) -> bool {
        self.foreign.is_none()
    }

    /// Changes a cargo command so that it builds for the architecture; `flags` are added for rustc.
    pub(crate) fn direct(&self, command: &mut Command, flags: &str) {
        let target = self.arch.target();
        let upper = target.to_uppercase().replace('-', "_");
        let variable = |option: &str| format!("CARGO_TARGET_{upper}_{option}");
        command.args(["--target", target]);
        let mut flags = flags.to_owned();
        if let Some((rustc, sysroot)) = &self.foreign {
            let linker = format!("{}-gcc", self.arch.gnu());
            command.env("RUSTC", rustc).env(variable("LINKER"), linker);
            if let Some(sysroot) = sysroot {
                flags.push_str(&format!(" --sysroot={}", sysroot.display()));
            }
        }
        // cargo does not use these flags for build scripts and macros, because a target is given.
        command.env(variable("RUSTFLAGS"), flags);
    }
}

/// Returns true if the compiler `rustc` has an installed standard library for `arch`.
fn has_library(rustc: &PathBuf, arch: Arch) -> bool {
    let words = format!("--print target-libdir --target {}", arch.target());
    let mut command = command::of(rustc, &words);
    command::output(&mut command, "ask for the standard library")
        .and_then(|folder| fs::children(folder.trim().as_ref()))
        .is_ok_and(|files| !files.is_empty())
}

/// Returns the version of an installed Debian package; fails if it is not installed.
fn version(package: &str) -> Result<String> {
    let words = format!("--show --showformat=${{Version}} {package}");
    let mut command = command::of("dpkg-query", &words);
    let version = command::output(&mut command, &format!("ask for the version of {package}"))?;
    ensure!(!version.is_empty(), "{package} is not installed");
    Ok(version)
}

/// Returns a folder that can be rustc's sysroot: it contains the standard library for `arch` from
/// the Debian package whose version is that of the installed compiler.
fn library(arch: Arch) -> Result<PathBuf> {
    let version = version(COMPILER)?;
    let apt = Apt::open(arch)?;
    let wanted = format!("{LIBRARY}={version}");
    let folder = apt.unpacked(&format!("std-{version}"), &[&wanted], true)?;
    let sysroot = folder.join("sysroot");
    let link = sysroot.join("lib/rustlib").join(arch.target());
    if !link.exists() {
        fs::create_dir_all(link.parent().context("a folder")?)?;
        let library = folder.join("usr/lib/rustlib").join(arch.target());
        symlink(library, &link).with_context(|| format!("make {}", link.display()))?;
    }
    Ok(sysroot)
}
