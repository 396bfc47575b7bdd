// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask lint`: format, lints and documentation by cargo, and the project's own rules. `test`
//! calls it as its first stage.

mod direction;
mod files;
mod rules;
mod source;
mod tokens;

use std::path::Path;

use anyhow::{Result, bail, ensure};

use crate::{
    cargo::{self, HOST_PACKAGES, KERNEL_PACKAGE, Workspace},
    host,
    setup::{self, Needs, Toolchain},
};

pub(crate) fn run() -> Result<()> {
    check_all()
}

/// Every check, whatever became of those before it; fails with the names of those that failed.
pub(crate) fn check_all() -> Result<()> {
    let toolchain = setup::run(Needs::Build)?;
    let checks: [(&str, &dyn Fn() -> Result<()>); 9] = [
        ("format", &format),
        ("clippy on the host's crates", &clippy),
        ("lints on the kernel programs", &|| {
            kernel_programs(&toolchain)
        }),
        ("documentation", &documentation),
        ("direction of dependencies", &directions),
        ("licence lines", &|| {
            complaints(&files::licence_lines(&files::read_all()?))
        }),
        ("paths of a development machine", &|| {
            complaints(&files::machine_paths(&files::read_all()?))
        }),
        ("length of files", &lengths),
        ("settings page", &settings_page),
    ];
    let mut failed = Vec::new();
    for (name, check) in checks {
        println!("lint: {name}");
        if let Err(error) = check() {
            println!("lint: {name}: {error:#}");
            failed.push(name);
        }
    }
    ensure!(
        failed.is_empty(),
        "{} of {} checks failed: {}",
        failed.len(),
        checks.len(),
        failed.join("; ")
    );
    println!("lint: {} checks passed", checks.len());
    Ok(())
}

fn format() -> Result<()> {
    cargo::check(
        cargo::cargo("fmt").args(["--all", "--check"]),
        "cargo fmt (`cargo fmt --all` mends it)",
    )
}

fn clippy() -> Result<()> {
    // Targets that `cargo test` leaves out by itself are no part of "all targets", and are only linted
    // where nothing but names selects them.
    let tests = Workspace::read()?.test_targets();
    let named = tests.iter().flat_map(|test| ["--test", test]).collect();
    for selection in [vec!["--all-targets"], named] {
        let mut command = cargo::cargo("clippy");
        command
            .args(["--quiet", "--locked"])
            .args(HOST_PACKAGES)
            .args(selection)
            .args(["--", "-D", "warnings"]);
        cargo::check(&mut command, "cargo clippy")?;
    }
    Ok(())
}

/// Clippy of the compiler that builds the kernel programs; where it has none, that compiler's own lints.
fn kernel_programs(toolchain: &Toolchain) -> Result<()> {
    let target_dir = Workspace::read()?.target_directory().join("kernel-lint");
    let beside = toolchain.rustc.with_file_name("cargo-clippy");
    let flags = ["-Cpanic=abort", "-Dwarnings"];
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
    cargo::check(&mut command, "lint the kernel programs")
}

fn documentation() -> Result<()> {
    let mut command = cargo::cargo("doc");
    command
        .args(["--quiet", "--locked", "--no-deps"])
        .args(HOST_PACKAGES);
    cargo::check(command.env("RUSTDOCFLAGS", "-D warnings"), "cargo doc")
}

fn directions() -> Result<()> {
    let files = files::read_all()?;
    let mut found = direction::check(&files, rules::RULES);
    found.extend(rules::check_dependencies(&Workspace::read()?));
    complaints(&found)
}

fn lengths() -> Result<()> {
    let lengths = files::lengths(&files::read_all()?);
    for warning in &lengths.warnings {
        println!("  warning: {warning}");
    }
    complaints(&lengths.errors)
}

/// docs/settings.md is rendered from the table of settings.
fn settings_page() -> Result<()> {
    let mut command = cargo::cargo("test");
    command
        .args(["--quiet", "--locked", "--package", "proxy-user", "--lib"])
        .arg("settings_page");
    cargo::check(&mut command, "compare docs/settings.md with the table")
}

fn complaints(found: &[String]) -> Result<()> {
    if found.is_empty() {
        return Ok(());
    }
    for complaint in found {
        println!("  {complaint}");
    }
    bail!("{} found, see above", found.len())
}

/// A text file of the project.
pub(crate) struct File {
    /// From the clone's top.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl File {
    fn is_rust(&self) -> bool {
        Path::new(&self.path)
            .extension()
            .is_some_and(|extension| extension == "rs")
    }
}
