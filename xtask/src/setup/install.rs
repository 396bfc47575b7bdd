// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Changes the machine for `setup`: installs Debian packages, and bpf-linker in the user's cache.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use super::{cache_dir, search::LINKER_VERSION, step};
use crate::{cargo, command, fs, host};

/// Returns true if this process can install Debian packages.
pub(super) fn is_possible() -> bool {
    host::is_root() && host::find_program("apt-get").is_some()
}

/// Returns the path of the linker that is built against an LLVM version.
pub(super) fn linker_path(llvm: u32) -> Result<PathBuf> {
    Ok(linker_folder(llvm)?.join("bin/bpf-linker"))
}

fn linker_folder(llvm: u32) -> Result<PathBuf> {
    Ok(cache_dir()?.join(format!("bpf-linker-{LINKER_VERSION}-llvm-{llvm}")))
}

/// Returns the folder in which Debian's packages install an LLVM version.
pub(super) fn llvm_prefix(llvm: u32) -> PathBuf {
    PathBuf::from(format!("/usr/lib/llvm-{llvm}"))
}

/// Builds bpf-linker in a folder of the cache.
pub(super) fn linker(llvm: u32) -> Result<()> {
    let what = format!("building bpf-linker {LINKER_VERSION} against LLVM {llvm}");
    step("setup", &format!("{what} (about a minute, once per user)"));
    let prefix = llvm_prefix(llvm);
    let path = env::var_os("PATH").unwrap_or_default();
    let own = [prefix.join("bin")].into_iter();
    let path = own.chain(env::split_paths(&path));
    let mut command = cargo::cargo("install");
    command
        .args([
            "--no-default-features",
            "--features",
            &format!("llvm-{llvm}"),
        ])
        .env(
            "PATH",
            env::join_paths(path).context("put LLVM's programs in the PATH")?,
        )
        // Without LLVM_PREFIX, bpf-linker's build script does not find LLVM's libraries.
        .env("LLVM_PREFIX", &prefix)
        .env(format!("LLVM_SYS_{llvm}1_PREFIX"), &prefix);
    cargo_install(command, &linker_folder(llvm)?, "bpf-linker", LINKER_VERSION)
}

/// Builds a cargo subcommand in a folder.
pub(super) fn cargo_tool(folder: &Path, name: &str, version: &str) -> Result<()> {
    let mut command = cargo::cargo("install");
    // The tool runs only for a second, so a fast build matters more than a fast program.
    command
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
        .env("CARGO_PROFILE_RELEASE_LTO", "off");
    cargo_install(command, folder, name, version)
}

/// Runs `cargo install` for a crate, with `folder` as its root.
fn cargo_install(mut command: Command, folder: &Path, name: &str, version: &str) -> Result<()> {
    command
        .args([name, "--version", version, "--locked"])
        .current_dir(cache_dir()?);
    // These variables are only for builds of the project itself.
    for own in "RUSTFLAGS CARGO_ENCODED_RUSTFLAGS CARGO_TARGET_DIR CARGO_BUILD_TARGET".split(' ') {
        command.env_remove(own);
    }
    fs::replace_folder(folder, |partial| {
        logged(command.arg("--root").arg(partial), &format!("build {name}"))
    })
}

/// Installs Debian packages, names with a space between. If that fails, downloads new package lists
/// and tries once more: old lists may have files that mirrors no longer have.
pub(super) fn packages(names: &str) -> Result<()> {
    let install = || {
        step("setup", &format!("installing Debian packages: {names}"));
        apt_get(&format!("install --yes --no-install-recommends {names}"))
    };
    install().or_else(|_| {
        update_lists();
        install().with_context(|| {
            format!("install packages; run `apt-get install {names}` yourself and try again")
        })
    })
}

/// Downloads apt's package lists. A failure is only printed: other sources may have answered.
pub(super) fn update_lists() {
    step("setup", "fetching apt's package lists");
    if let Err(error) = apt_get("update") {
        let text = format!("not every list could be fetched, continuing: {error:#}");
        step("setup", &text);
    }
}

fn apt_get(words: &str) -> Result<()> {
    // Another apt may be running, e.g. soon after the machine's boot.
    let options = "-o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 --quiet";
    let mut command = command::of("apt-get", &format!("{options} {words}"));
    command.env("DEBIAN_FRONTEND", "noninteractive");
    logged(&mut command, &format!("apt-get {words}"))
}

/// Runs a command and writes its output to the log file; an error contains the log's last lines.
pub(super) fn logged(command: &mut Command, what: &str) -> Result<()> {
    let file = cache_dir()?.join("setup.log");
    let status = command::log_to(command, &file)?.status();
    let status = status.with_context(|| format!("{what}: start the program"))?;
    if !status.success() {
        let tail = fs::tail(&file, 15).replace('\n', "\n    ");
        let file = file.display();
        bail!("{what}: {status}; the end of {file}:\n    {tail}");
    }
    Ok(())
}
