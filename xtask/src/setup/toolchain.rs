// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The chosen toolchain, and its file of `key=value` lines for proxy-user/datapath/build.rs.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, ensure};

use super::cache_dir;
use crate::{cargo, command, fs, host};

/// The Rust target of the kernel programs.
pub(crate) const TARGET: &str = "bpfel-unknown-none";

/// The toolchain that builds the kernel programs.
#[derive(Clone)]
pub(crate) struct Toolchain {
    pub(crate) cargo: PathBuf,
    pub(crate) rustc: PathBuf,
    pub(crate) linker: PathBuf,
    /// Whether the crate `core` must be built from source: the compiler has none for the target.
    pub(crate) build_std: bool,
    /// The output of `rustc --version` at the test: an updated compiler is tested again.
    pub(super) version: String,
}

/// Returns the file's path: in the cache, or as PORTOLAN_TOOLCHAIN_FILE says.
pub(crate) fn file() -> Result<PathBuf> {
    match env::var_os("PORTOLAN_TOOLCHAIN_FILE") {
        Some(file) => Ok(file.into()),
        None => Ok(cache_dir()?.join("toolchain")),
    }
}

impl Toolchain {
    fn parse(text: &str) -> Option<Self> {
        let value = |key: &str| {
            let mut pairs = text.lines().filter_map(|line| line.split_once('='));
            pairs.find_map(|(name, value)| (name == key).then(|| value.to_owned()))
        };
        Some(Self {
            cargo: value("cargo")?.into(),
            rustc: value("rustc")?.into(),
            linker: value("linker")?.into(),
            build_std: value("build-std").is_some(),
            version: value("rustc-version")?,
        })
    }

    /// Returns the toolchain in the file if its programs exist and its compiler is the same.
    pub(super) fn still_valid(file: &Path) -> Option<Self> {
        let toolchain = Self::parse(&fs::read_to_string(file).ok()?)?;
        let version = |program: &Path| {
            let mut command = command::of(program, "--version");
            command::output(&mut command, "ask for the version").ok()
        };
        let same = version(&toolchain.rustc)?.trim() == toolchain.version;
        let there = host::is_executable(&toolchain.cargo) && version(&toolchain.linker).is_some();
        (same && there).then_some(toolchain)
    }

    /// Replaces the toolchain's file atomically, and only if its content changes: a newer file
    /// makes every clone build the kernel programs again.
    pub(super) fn written(self, file: &Path) -> Result<Self> {
        let paths = [&self.cargo, &self.rustc, &self.linker].map(|path| path.display());
        let [cargo, rustc, linker] = paths;
        let std = if self.build_std { "build-std=1\n" } else { "" };
        let version = &self.version;
        let text = format!(
            "cargo={cargo}\nrustc={rustc}\nlinker={linker}\nrustc-version={version}\n{std}"
        );
        fs::replace(file, text)?;
        Ok(self)
    }

    pub(super) fn summary(&self) -> String {
        let core = match self.build_std {
            true => ", building core from rust-src",
            false => "",
        };
        format!("{}{core}; {}", self.version, self.linker.display())
    }

    /// Returns a cargo command for the kernel programs, in the environment of datapath/build.rs.
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

/// The trial program: a minimal kernel program.
const MANIFEST: &str = include_str!("../../setup/probe.toml");

const LOCK: &str = "version = 4\n\n[[package]]\nname = \"probe\"\nversion = \"0.0.0\"\n";

const PROGRAM: &str = r#"
#![no_std]
#![no_main]
#[unsafe(no_mangle)]
#[unsafe(link_section = "classifier")]
pub extern "C" fn probe(number: u32) -> u32 { number.count_ones() }
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! { loop {} }
"#;

/// The machine of an ELF file for BPF.
const EM_BPF: [u8; 2] = [247, 0];

/// Builds the minimal program as proxy-user/datapath/build.rs builds portolan's, and checks that
/// the result has its section and BTF: version numbers do not prove that compiler and linker fit.
pub(super) fn probe(toolchain: &Toolchain) -> Result<()> {
    let folder = cache_dir()?.join("probe");
    fs::write(folder.join("Cargo.toml"), MANIFEST)?;
    fs::write(folder.join("Cargo.lock"), LOCK)?;
    fs::write(folder.join("probe.rs"), PROGRAM)?;
    let linker = format!("-Clinker={}", toolchain.linker.display());
    let flags = [
        "-Cdebuginfo=2",
        "-Clink-arg=--btf",
        &linker,
        "-Cpanic=abort",
    ];
    let mut command = toolchain.command(&toolchain.cargo, "build", &flags);
    command
        .current_dir(&folder)
        .args(["--target-dir", "target"]);
    command::output(&mut command, "build a trial program")?;
    let object = fs::read(folder.join("target").join(TARGET).join("release/probe"))?;
    fs::remove_dir_all(&folder)?;
    let has = |part: &[u8]| object.windows(part.len()).any(|bytes| bytes == part);
    ensure!(
        object.get(18..20) == Some(&EM_BPF) && has(b"classifier\0") && has(b".BTF\0"),
        "the linker's output is no BPF object with its section and BTF"
    );
    Ok(())
}
