// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask lint`: cargo's checks of format, lints and documentation, and the project's own
//! checks. The first stage of `cargo xtask test`.

mod budget;
mod dependencies;
mod files;

use std::{
    io::{IsTerminal, stderr},
    mem,
    path::Path,
    process::Command,
    time::Instant,
};

use anyhow::{Result, ensure};

use crate::{
    cargo::{self, HOST_PACKAGES, KERNEL_PACKAGE, Workspace},
    command,
    cross::Arch,
    host, kernels,
    setup::{self, DENY, Needs, Toolchain},
};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only write numbers of lines that have become less into the budgets of the Cargo.toml files
    #[arg(long)]
    lower: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    if arguments.lower {
        return budget::lower(&budget::entries(&files::read_all()?, &Workspace::read()?));
    }
    check_all()
}

/// Runs every check, also after one has failed. The failures are printed at the end.
pub(crate) fn check_all() -> Result<()> {
    let toolchain = setup::run(Needs::Build)?;
    let workspace = Workspace::read()?;
    let files = files::read_all()?;
    let lines = budget::entries(&files, &workspace);
    let mut start = Instant::now();
    let (mut all, mut failed) = (0, Vec::new());
    let mut seen = |name: &'static str, result: Result<()>| {
        let state = if result.is_ok() { "ok" } else { "FAILED" };
        let begun = mem::replace(&mut start, Instant::now());
        let seconds = begun.elapsed().as_secs_f64();
        println!("lint: {name}: {state} ({seconds:.1} s)");
        all += 1;
        failed.extend(result.err().map(|error| (name, error)));
    };
    seen("format", format());
    seen("clippy on the host's crates", clippy(&workspace));
    let programs = kernel_programs(&toolchain, &workspace);
    seen("lints on the kernel programs", programs);
    seen("documentation", documentation());
    let packages = none(&dependencies::check(&workspace));
    seen("dependencies of packages", packages);
    let found = none(&files::check(&files));
    seen("licence lines, lengths, widths and paths in files", found);
    seen("budgets of lines", none(&budget::check(&lines)));
    seen("licences and sources of dependencies", licences());
    let programs = kernels::over_budget().and_then(|found| none(&found));
    seen("verified instructions, by docs/dev/kernels.json", programs);
    println!("lint: {}", budget::sums(&lines));
    for (name, error) in &failed {
        println!("\n{name}: {error:#}");
    }
    let names: Vec<_> = failed.iter().map(|(name, _)| *name).collect();
    let (bad, names) = (failed.len(), names.join("; "));
    ensure!(bad == 0, "{bad} of {all} checks failed, see above: {names}");
    println!("lint: {all} checks passed");
    Ok(())
}

fn format() -> Result<()> {
    let mut command = cargo::cargo("fmt");
    command.args(["--all", "--", "--check", "-l"]);
    silent(&mut command, "`cargo fmt --all` formats these files")
}

fn clippy(workspace: &Workspace) -> Result<()> {
    // `--all-targets` does not include targets with `test = false`. Cargo lints those only if they
    // are selected by name and nothing else is, hence the second run.
    let tests = workspace.test_targets();
    let named = tests.iter().flat_map(|test| ["--test", test]).collect();
    for selection in [vec!["--all-targets"], named] {
        let mut command = cargo::cargo("clippy");
        command
            .args(["--quiet", "--locked"])
            .args(HOST_PACKAGES)
            .args(selection)
            .args(["--", "-D", "warnings"]);
        silent(&mut command, "cargo clippy")?;
    }
    Ok(())
}

/// Runs clippy of the kernel programs' compiler, or its own lints if it has no clippy.
fn kernel_programs(toolchain: &Toolchain, workspace: &Workspace) -> Result<()> {
    let target_dir = workspace.target_directory().join("kernel-lint");
    let beside = toolchain.rustc.with_file_name("cargo-clippy");
    // The same instruction set as in proxy-user's build script.
    let flags = ["-Ctarget-cpu=v3", "-Cpanic=abort", "-Dwarnings"];
    let mut command = if host::is_executable(&beside) {
        toolchain.command(&beside, "clippy", &flags)
    } else {
        println!(
            "lint: no clippy beside {}; its own lints only (Debian: rust-web-clippy; rustup: component clippy)",
            toolchain.rustc.display()
        );
        toolchain.command(&toolchain.cargo, "check", &flags)
    };
    command
        .args(["--quiet", "--package", KERNEL_PACKAGE])
        .arg("--target-dir")
        .arg(target_dir);
    silent(&mut command, "lint the kernel programs")
}

fn documentation() -> Result<()> {
    let mut command = cargo::cargo("doc");
    command
        .args(["--quiet", "--locked", "--no-deps"])
        .args(HOST_PACKAGES);
    silent(command.env("RUSTDOCFLAGS", "-D warnings"), "cargo doc")
}

/// Runs a command and shows its output only if it fails, as part of the error.
fn silent(command: &mut Command, what: &str) -> Result<()> {
    if stderr().is_terminal() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    command::output(command, what).map(drop)
}

/// Checks licences of dependencies by deny.toml, for each architecture separately. Security
/// advisories are not checked, because their database needs the network. Optional dependencies of
/// the workspace are checked too, although a build may not have downloaded them.
fn licences() -> Result<()> {
    let Some(tool) = DENY.built() else {
        println!(
            "lint: warning: licences are not checked, because cargo-deny is not built; `cargo xtask test deploy` builds it"
        );
        return Ok(());
    };
    for arch in [Arch::Amd64, Arch::Arm64] {
        let mut fetch = cargo::cargo("fetch");
        fetch.args(["--locked", "--target", arch.target()]);
        silent(&mut fetch, "cargo fetch")?;
        let mut command = Command::new(&tool);
        command
            .args(["--offline", "--target", arch.target(), "check"])
            .args(["--hide-inclusion-graph", "bans", "licenses", "sources"])
            .current_dir(cargo::root());
        silent(&mut command, "cargo deny")?;
    }
    Ok(())
}

/// Fails if a check has found something.
fn none(found: &[String]) -> Result<()> {
    let count = found.len();
    ensure!(count == 0, "{count} found\n  {}", found.join("\n  "));
    Ok(())
}

/// A text file of the project.
pub(crate) struct File {
    /// The path relative to the root folder of the clone.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl File {
    fn new(path: &str, text: &str) -> Self {
        Self {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    fn is_rust(&self) -> bool {
        let ending = Path::new(&self.path).extension();
        ending.is_some_and(|ending| ending == "rs")
    }
}
