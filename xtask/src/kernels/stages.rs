// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The stages that are run in a kernel, each a test program of this clone. Used by `kernels`.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result};

use super::apt::compare;
use crate::{
    cargo::{self, Workspace},
    cross::{Arch, Builder},
};

/// A shell command that is run in a kernel and counts as one stage in the results.
pub(super) struct Stage {
    pub(super) name: &'static str,
    /// The command line for the kernel's shell.
    pub(super) command: String,
}

impl Stage {
    /// The longest time that a stage may take.
    pub(super) const LIMIT: Duration = Duration::from_secs(1800);
}

const TESTS: &str = "packet fuzz maps node conformance";

/// The oldest kernel with every kind of interface.
const NETKIT: &str = "6.7";

/// The test programs and the agent that run in the kernels.
pub(super) struct Built {
    pub(super) arch: Arch,
    pub(super) programs: Vec<PathBuf>,
    /// Folders that the programs read; they have the same paths in the kernel's file system.
    pub(super) folders: [PathBuf; 3],
}

impl Built {
    pub(super) fn build(arch: Arch) -> Result<Self> {
        let builder = Builder::new(arch)?;
        let folder = Workspace::read()?.target_directory();
        let build = |name| {
            cargo::build_test(name, |command| {
                if builder.is_native() {
                    return;
                }
                // A separate folder, because everything differs in a cross build. Linked
                // statically, so that the program needs no library in the kernel's file system.
                command.arg("--target-dir").arg(folder.join(arch.name()));
                builder.direct(command, "-Ctarget-feature=+crt-static");
            })
        };
        let mut programs = TESTS.split(' ').map(build).collect::<Result<Vec<_>>>()?;
        let beside = programs.first().and_then(|test| test.parent()?.parent());
        let agent = beside.map(|folder| folder.join("portolan"));
        programs.push(agent.context("tests are built into a folder")?);
        let folders = ["conformance", "deploy", "proxy-user/tests/fuzz/cases"];
        Ok(Self {
            arch,
            programs,
            folders: folders.map(|folder| cargo::root().join(folder)),
        })
    }

    /// Returns the stages to run in the kernel with this version (`uname -r`), by `stages.txt`.
    /// `is_part`: only tests that are short enough for `cargo xtask test`.
    pub(super) fn stages(&self, is_part: bool, release: &str) -> Vec<Stage> {
        let has_all = compare(release, NETKIT).is_ge();
        let cases = cargo::root().join("conformance/cases");
        let skipped = if has_all { "" } else { " --skip netkit" };
        let programs = TESTS.split(' ').zip(&self.programs);
        let programs = programs.map(|(name, program)| (name, program.display().to_string()));
        let mut words: Vec<_> = programs.collect();
        words.push(("cases", cases.display().to_string()));
        words.push(("skipped", skipped.to_owned()));
        let stage = |line: &'static str| {
            let (when, rest) = line.split_once(' ')?;
            let (name, command) = rest.split_once(' ')?;
            let is_run = match when {
                "part" => is_part,
                "all" => !is_part,
                "new" => has_all || !is_part,
                word => word == "both",
            };
            let mut command = command.to_owned();
            for (word, text) in &words {
                command = command.replace(&format!("{{{word}}}"), text);
            }
            is_run.then_some(Stage { name, command })
        };
        let lines = include_str!("stages.txt").lines();
        lines.filter_map(stage).collect()
    }
}
