// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Changes the machine for `setup`: installs Debian packages, and bpf-linker in the user's cache.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use super::{progress::Progress, search::LINKER_VERSION};
use crate::{cargo, command, fs, host};

/// Returns true if this process can install Debian packages.
pub(super) fn is_possible() -> bool {
    host::is_root() && host::find_program("apt-get").is_some()
}

/// Returns the path of the file with the output of the program that `setup` called last.
pub(super) fn log_file(cache: &Path) -> PathBuf {
    cache.join("setup.log")
}

/// Returns the path of the linker that is built against an LLVM version.
pub(super) fn linker_path(cache: &Path, llvm: u32) -> PathBuf {
    linker_folder(cache, llvm).join("bin/bpf-linker")
}

fn linker_folder(cache: &Path, llvm: u32) -> PathBuf {
    let [a, b, c] = LINKER_VERSION;
    cache.join(format!("bpf-linker-{a}.{b}.{c}-llvm-{llvm}"))
}

/// Returns the folder in which Debian's packages install an LLVM version.
pub(super) fn llvm_prefix(llvm: u32) -> PathBuf {
    PathBuf::from(format!("/usr/lib/llvm-{llvm}"))
}

/// Builds bpf-linker in a folder of the cache.
pub(super) fn linker(cache: &Path, llvm: u32, progress: &Progress) -> Result<()> {
    let [a, b, c] = LINKER_VERSION;
    let version = format!("{a}.{b}.{c}");
    progress.step(&format!(
        "building bpf-linker {version} against LLVM {llvm} (about a minute, once per user)"
    ));
    let prefix = llvm_prefix(llvm);
    let path = env::var_os("PATH").unwrap_or_default();
    let path = [prefix.join("bin")]
        .into_iter()
        .chain(env::split_paths(&path));
    let path = env::join_paths(path).context("put LLVM's programs in the PATH")?;
    let folder = linker_folder(cache, llvm);
    cargo_install(cache, &folder, "bpf-linker", &version, |command| {
        command
            .args([
                "--no-default-features",
                "--features",
                &format!("llvm-{llvm}"),
            ])
            .env("PATH", path)
            // Without LLVM_PREFIX, bpf-linker's build script does not find LLVM's libraries.
            .env("LLVM_PREFIX", &prefix)
            .env(format!("LLVM_SYS_{llvm}1_PREFIX"), &prefix);
    })?;
    progress.step("bpf-linker built");
    Ok(())
}

/// Builds a cargo subcommand in a folder.
pub(super) fn cargo_tool(cache: &Path, folder: &Path, name: &str, version: &str) -> Result<()> {
    cargo_install(cache, folder, name, version, |command| {
        // The tool runs only for a second, so a fast build matters more than a fast program.
        command
            .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
            .env("CARGO_PROFILE_RELEASE_LTO", "off");
    })
}

/// Runs `cargo install` for a crate, with `folder` as its root; `change` changes the command.
fn cargo_install(
    cache: &Path,
    folder: &Path,
    name: &str,
    version: &str,
    change: impl FnOnce(&mut Command),
) -> Result<()> {
    let mut command = cargo::cargo("install");
    command
        .args([name, "--version", version, "--locked"])
        .current_dir(cache);
    change(&mut command);
    // These variables are only for builds of the project itself.
    for own in "RUSTFLAGS CARGO_ENCODED_RUSTFLAGS CARGO_TARGET_DIR CARGO_BUILD_TARGET".split(' ') {
        command.env_remove(own);
    }
    fs::replace_folder(folder, |partial| {
        command.arg("--root").arg(partial);
        logged(cache, &mut command, &format!("build {name}"))
    })
}

/// Installs Debian packages. If that fails, downloads new package lists and tries once more: old
/// lists may have files that mirrors no longer have.
pub(super) fn packages(cache: &Path, packages: &[String], progress: &Progress) -> Result<()> {
    let names = packages.join(" ");
    progress.step(&format!("installing Debian packages: {names}"));
    if install(cache, packages).is_err() {
        update_lists(cache, progress);
        progress.step("installing once more");
        install(cache, packages).with_context(|| {
            format!("install packages; run `apt-get install {names}` yourself and try again")
        })?;
    }
    progress.step("Debian packages installed");
    Ok(())
}

/// Downloads apt's package lists. A failure is only printed: if one source fails, packages of the
/// others can still be installed.
pub(super) fn update_lists(cache: &Path, progress: &Progress) {
    progress.step("fetching apt's package lists");
    if let Err(error) = logged(cache, apt_get().arg("update"), "apt-get update") {
        progress.step(&format!(
            "not every list could be fetched, continuing: {error:#}"
        ));
    }
}

fn install(cache: &Path, packages: &[String]) -> Result<()> {
    let mut command = apt_get();
    command
        .args(["install", "--yes", "--no-install-recommends"])
        .args(packages);
    logged(cache, &mut command, "apt-get install")
}

fn apt_get() -> Command {
    let program = host::find_program("apt-get").unwrap_or_else(|| "apt-get".into());
    // Another apt may be running, e.g. soon after the machine's boot.
    let options = "-o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 --quiet";
    let mut command = command::of(program, options);
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command
}

/// Runs a command and writes its output to the log file; an error contains the log's last lines.
pub(super) fn logged(cache: &Path, command: &mut Command, what: &str) -> Result<()> {
    let file = log_file(cache);
    let status = command::log_to(command, &file)?.status();
    let status =
        status.with_context(|| format!("{what}: start {}", command.get_program().display()))?;
    if !status.success() {
        let tail = fs::tail(&file, 15).replace('\n', "\n    ");
        bail!(
            "{what}: {status}; the end of {}:\n    {tail}",
            file.display()
        );
    }
    Ok(())
}
