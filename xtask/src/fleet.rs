// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The programs of `cargo xtask bench fleet`, and its short share in `cargo xtask test all`: many
//! agents with one API server, beside kube-proxy's informers.

use std::{path::PathBuf, process::Command};

use anyhow::Result;

use crate::{
    cargo::Workspace,
    setup::{
        control_plane,
        go::{self, Module, Program},
    },
};

const TARGET: &str = "fleet";

/// kube-proxy's clientset and informers without a proxier; its source is there.
const MODULE: Module = Module {
    folder: "informers",
    versioned: "k8s.io/client-go",
};
const INFORMERS: Program = Program::new("informers", ".");

/// Returns the path of the program of kube-proxy's informers, which is built if it is missing.
pub(crate) fn informers() -> Result<PathBuf> {
    let folder = go::programs(&MODULE, &[INFORMERS], "2 to 4 minutes")?;
    Ok(folder.join(INFORMERS.name))
}

/// Returns the command that runs the bench with a few agents and services, without the informers.
pub(crate) fn quick() -> Result<Command> {
    let mut command = Workspace::read()?.command("test", "bench", TARGET)?;
    control_plane::offer(&mut command)?;
    command.arg("--quick");
    Ok(command)
}
