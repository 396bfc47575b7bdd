// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask demo`: builds the agent and runs the example program `demo` of the package `lab`.

use std::process::Command;

use anyhow::Result;

use crate::{
    cargo::{self, Workspace},
    command, setup,
};

const TARGET: &str = "demo";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Leave the node running and print the commands to look around with
    #[arg(long)]
    keep: bool,
    /// Passed on to the demo
    #[arg(last = true)]
    rest: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    setup::run_as_root("the demo")?;
    let workspace = Workspace::read()?;
    workspace.require("example", TARGET)?;
    // The dev profile: its first build takes about half the time of a release build, and the kernel
    // programs are optimised in both.
    cargo::build_with_agent(["--example", TARGET], false)?;
    let examples = workspace.target_directory().join("debug/examples");
    let mut command = Command::new(examples.join(TARGET));
    command
        .current_dir(cargo::root())
        .args(arguments.keep.then_some("--keep"))
        .args(&arguments.rest);
    command::check(&mut command, "run the demo")
}
