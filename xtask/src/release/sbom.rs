// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes bills of materials in the format CycloneDX, by cargo-cyclonedx: one of the agent, and one
//! of the kernel programs, which the agent's build script builds.

use std::{collections::BTreeMap, process::Command};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Commit;
use crate::{
    arch::Arch,
    cargo::{self, AGENT_PACKAGE, KERNEL_PACKAGE, Workspace},
    command, fs,
    setup::{self, CYCLONEDX},
};

/// The name of the file that cargo-cyclonedx writes next to each package's manifest.
const NAME: &str = "portolan-bill-of-materials";

pub(super) fn all(commit: &Commit) -> Result<BTreeMap<String, Vec<u8>>> {
    let tool = setup::cargo_tool(&CYCLONEDX)?;
    let mut command = Command::new(tool);
    command
        .args(["cyclonedx", "--format", "json", "--spec-version", "1.5"])
        .args(["--no-build-deps", "--override-filename", NAME, "--quiet"])
        // Leaves out dependencies for other operating systems, which none of the binaries contains.
        .args(["--target", Arch::OWN.target()])
        .args(["--manifest-path", "xtask/Cargo.toml"])
        .env("SOURCE_DATE_EPOCH", commit.time.to_string())
        .current_dir(cargo::root());
    let made = command::output(&mut command, "make the bills of materials");
    let mut bills = BTreeMap::new();
    let root = cargo::root().display().to_string();
    for (package, folder) in Workspace::read()?.folders() {
        let file = folder.join(format!("{NAME}.json"));
        let content = fs::read_to_string(&file);
        if file.exists() {
            fs::remove_file(&file)?;
        }
        let suffix = match package.as_str() {
            AGENT_PACKAGE => "",
            KERNEL_PACKAGE => "-kernel-programs",
            _ => continue,
        };
        if made.is_ok() {
            let name = format!("portolan{suffix}-{}.cdx.json", env!("CARGO_PKG_VERSION"));
            bills.insert(name, content?.replace(&root, "/portolan").into_bytes());
        }
    }
    made.map(|_| bills)
}

/// Fails unless the bills have the dependencies that are built in, none that only tests use, and no
/// path of this machine. A test of `deploy`, because cargo-cyclonedx must be built first.
pub(crate) fn check() -> Result<()> {
    let commit = Commit {
        id: String::new(),
        time: 1_700_000_000,
        date: String::new(),
    };
    let bills = all(&commit)?;
    ensure!(bills == all(&commit)?, "two bills of the same differ");
    let version = env!("CARGO_PKG_VERSION");
    for (name, inside, outside) in [
        ("portolan", "aya kube tokio", "proptest aya-ebpf"),
        (
            "portolan-kernel-programs",
            "aya-ebpf aya-log-ebpf proxy-common",
            "kube aya",
        ),
    ] {
        let file = format!("{name}-{version}.cdx.json");
        let bill = bills.get(&file).with_context(|| format!("no {file}"))?;
        let bill: Value = serde_json::from_slice(bill).context("read a bill")?;
        let format = &bill["bomFormat"];
        ensure!(format == "CycloneDX", "{file} is none of CycloneDX");
        let components = bill["components"].as_array().context("no components")?;
        let has = |name: &str| components.iter().any(|component| component["name"] == name);
        let has_all = inside.split(' ').all(has);
        ensure!(has_all, "{file} lacks one of {inside}");
        let has_other = outside.split(' ').any(has);
        ensure!(!has_other, "{file} has one of {outside}");
        let home = cargo::root().display().to_string();
        ensure!(!bill.to_string().contains(&home), "{file} names {home}");
    }
    Ok(())
}
