// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bills of materials in CycloneDX, by cargo-cyclonedx: of the agent, and of the kernel programs, which its build script builds.

use std::{collections::BTreeMap, fs, process::Command};

use anyhow::{Context, Result};

use super::Commit;
use crate::{
    arch::Arch,
    cargo::{self, AGENT_PACKAGE, KERNEL_PACKAGE, Workspace},
    setup::{self, CYCLONEDX},
};

/// The tool writes files of this name beside the manifest of each member.
const NAME: &str = "portolan-bill-of-materials";

pub(super) fn all(commit: &Commit) -> Result<BTreeMap<String, Vec<u8>>> {
    let tool = setup::cargo_tool(&CYCLONEDX)?;
    let mut command = Command::new(tool);
    command
        .args(["cyclonedx", "--format", "json", "--spec-version", "1.5"])
        .args(["--no-build-deps", "--override-filename", NAME, "--quiet"])
        // What is for other systems only is in none of the binaries.
        .args(["--target", Arch::OWN.target()])
        .args(["--manifest-path", "xtask/Cargo.toml"])
        .env("SOURCE_DATE_EPOCH", commit.time.to_string())
        .current_dir(cargo::root());
    let made = cargo::output(&mut command, "make the bills of materials");
    let mut bills = BTreeMap::new();
    let root = cargo::root().display().to_string();
    for (package, folder) in Workspace::read()?.folders() {
        let file = folder.join(format!("{NAME}.json"));
        let content = fs::read_to_string(&file);
        if file.exists() {
            fs::remove_file(&file).with_context(|| format!("remove {}", file.display()))?;
        }
        let suffix = match package.as_str() {
            AGENT_PACKAGE => "",
            KERNEL_PACKAGE => "-kernel-programs",
            _ => continue,
        };
        if made.is_ok() {
            let content = content.with_context(|| format!("read {}", file.display()))?;
            let name = format!("portolan{suffix}-{}.cdx.json", env!("CARGO_PKG_VERSION"));
            bills.insert(name, content.replace(&root, "/portolan").into_bytes());
        }
    }
    made.map(|_| bills)
}
