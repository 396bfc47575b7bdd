// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Changes the machine for `setup`: installs Debian packages, and bpf-linker in the user's cache.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use super::{choose::LINKER_VERSION, progress::Progress};
use crate::{cargo, host};

/// Returns the path of the file with the output of the program that `setup` called last.
pub(super) fn log_file(cache: &Path) -> PathBuf {
    cache.join("setup.log")
}

/// Returns the path of the linker that is built against an LLVM version.
pub(super) fn linker_path(cache: &Path, llvm: u32) -> PathBuf {
    linker_folder(cache, llvm).join("bin/bpf-linker")
}

fn linker_folder(cache: &Path, llvm: u32) -> PathBuf {
    let (a, b, c) = LINKER_VERSION;
    cache.join(format!("bpf-linker-{a}.{b}.{c}-llvm-{llvm}"))
}

/// Returns the folder in which Debian's packages install an LLVM version.
pub(super) fn llvm_prefix(llvm: u32) -> PathBuf {
    PathBuf::from(format!("/usr/lib/llvm-{llvm}"))
}

/// Builds bpf-linker in a temporary folder of the cache and renames the folder afterwards, so that
/// a folder with the final name is complete.
pub(super) fn linker(cache: &Path, llvm: u32, progress: &Progress) -> Result<()> {
    let (a, b, c) = LINKER_VERSION;
    let version = format!("{a}.{b}.{c}");
    progress.step(&format!(
        "building bpf-linker {version} against LLVM {llvm} (about a minute, once per user)"
    ));
    let place = linker_folder(cache, llvm);
    let partial = place.with_extension("partial");
    remove(&partial)?;
    let prefix = llvm_prefix(llvm);
    let path = env::join_paths(
        [prefix.join("bin")]
            .into_iter()
            .chain(env::split_paths(&env::var_os("PATH").unwrap_or_default())),
    )
    .context("put LLVM's programs in the PATH")?;
    let mut command = cargo::cargo("install");
    command
        .args([
            "bpf-linker",
            "--version",
            &version,
            "--locked",
            "--no-default-features",
        ])
        .args(["--features", &format!("llvm-{llvm}")])
        .arg("--root")
        .arg(&partial)
        .current_dir(cache)
        .env("PATH", path)
        // Without LLVM_PREFIX, bpf-linker's build script does not find LLVM's libraries.
        .env("LLVM_PREFIX", &prefix)
        .env(format!("LLVM_SYS_{llvm}1_PREFIX"), &prefix);
    without_settings(&mut command);
    logged(cache, &mut command, "build bpf-linker")?;
    remove(&place)?;
    fs::rename(&partial, &place)
        .with_context(|| format!("move bpf-linker to {}", place.display()))?;
    progress.step("bpf-linker built");
    Ok(())
}

/// Removes environment variables that are only for builds of the project itself.
fn without_settings(command: &mut Command) {
    for inherited in [
        "RUSTFLAGS",
        "CARGO_ENCODED_RUSTFLAGS",
        "CARGO_TARGET_DIR",
        "CARGO_BUILD_TARGET",
    ] {
        command.env_remove(inherited);
    }
}

/// Builds a cargo subcommand in a temporary folder and renames the folder to `place` afterwards, so
/// that a folder with the final name is complete.
pub(super) fn cargo_tool(cache: &Path, place: &Path, name: &str, version: &str) -> Result<()> {
    let partial = cache.join(format!("{name}.partial"));
    remove(&partial)?;
    let mut command = cargo::cargo("install");
    command
        .args([name, "--version", version, "--locked", "--root"])
        .arg(&partial)
        // The tool runs only for a second, so a fast build matters more than a fast program.
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .current_dir(cache);
    without_settings(&mut command);
    logged(cache, &mut command, &format!("build {name}"))?;
    remove(place)?;
    fs::rename(&partial, place).with_context(|| format!("move {name} to {}", place.display()))
}

pub(super) fn remove(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    Ok(())
}

/// Installs Debian packages. If that fails, downloads new package lists and tries once more: old
/// lists may have files that mirrors no longer have.
pub(super) fn packages(cache: &Path, packages: &[String], progress: &Progress) -> Result<()> {
    progress.step(&format!(
        "installing Debian packages: {}",
        packages.join(" ")
    ));
    if install(cache, packages).is_err() {
        update_lists(cache, progress);
        progress.step("installing once more");
        install(cache, packages).with_context(|| {
            format!(
                "install Debian packages; run `apt-get install {}` yourself and try again",
                packages.join(" ")
            )
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
    let mut command =
        Command::new(host::find_program("apt-get").unwrap_or_else(|| "apt-get".into()));
    command
        .env("DEBIAN_FRONTEND", "noninteractive")
        // Another apt may be running, e.g. soon after the machine's boot.
        .args([
            "-o",
            "DPkg::Lock::Timeout=300",
            "-o",
            "Acquire::Retries=3",
            "--quiet",
        ]);
    command
}

/// Runs a command and writes its output to the log file; an error contains the log's last lines.
pub(super) fn logged(cache: &Path, command: &mut Command, what: &str) -> Result<()> {
    let file = log_file(cache);
    let log = fs::File::create(&file).with_context(|| format!("write {}", file.display()))?;
    let errors = log
        .try_clone()
        .with_context(|| format!("write {}", file.display()))?;
    let status = command
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors)
        .status()
        .with_context(|| format!("{what}: start {}", command.get_program().to_string_lossy()))?;
    if !status.success() {
        let text = fs::read_to_string(&file).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        let tail = lines[lines.len().saturating_sub(15)..].join("\n    ");
        bail!(
            "{what}: {status}; the end of {}:\n    {tail}",
            file.display()
        );
    }
    Ok(())
}
