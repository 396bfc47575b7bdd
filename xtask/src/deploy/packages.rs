// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests a release's packages with the programs that read them (dpkg, helm). Small placeholder
//! files stand for the binaries.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use super::helm::{ADDRESS, Helm};
use crate::{arch::Arch, command, fs, release::trial, setup};

/// Tests that dpkg unpacks the .deb package into a separate root folder, and lists it.
pub(super) fn debian() -> Result<()> {
    setup::tools(&[
        ("dpkg", "dpkg"),
        ("dpkg-deb", "dpkg"),
        ("sha256sum", "coreutils"),
    ])?;
    let place = TempDir::with_prefix("portolan-packages-").context("make a folder")?;
    let at = |name: &str| place.path().join(name);
    for (name, content) in trial::files()? {
        fs::write(at(&name), content)?;
    }
    let run = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.current_dir(place.path()).args(arguments);
        command::output(&mut command, &format!("{program} {}", arguments.join(" ")))
    };
    run("sha256sum", &["--check", "--strict", "SHA256SUMS"])?;
    let package = format!("portolan_1.2.3_{}.deb", Arch::OWN.name());
    fs::create_dir_all(at("root/var/lib/dpkg/updates"))?;
    fs::create_dir_all(at("root/var/lib/dpkg/info"))?;
    fs::write(at("root/var/lib/dpkg/status"), "")?;
    let root = format!("--root={}", at("root").display());
    run("dpkg", &[&root, "--force-not-root", "--unpack", &package])?;
    let listed = run("dpkg", &[&root, "--listfiles", "portolan"])?;
    for name in [
        "/usr/bin/portolan",
        "/usr/lib/systemd/system/portolan.service",
    ] {
        let is_listed = listed.lines().any(|line| line == name);
        ensure!(is_listed, "not installed: {name}: {listed}");
        ensure!(at(&format!("root{name}")).is_file(), "not there: {name}");
    }
    let version = run("dpkg-deb", &["--field", &package, "Version"])?;
    ensure!(version.trim() == "1.2.3", "the version is {version}");
    Ok(())
}

/// Tests that helm renders the packed chart as it renders the chart's folder.
pub(super) fn chart(helm: &Helm) -> Result<()> {
    let place = TempDir::with_prefix("portolan-chart-").context("make a folder")?;
    let file = place.path().join("portolan.tgz");
    let files = trial::files()?;
    fs::write(&file, &files["portolan-1.2.3.tgz"])?;
    let packed = helm.template_of(&file, &[ADDRESS])?;
    let is_same = packed == helm.template(&[ADDRESS])?;
    ensure!(is_same, "the packed chart gives other objects");
    Ok(())
}
