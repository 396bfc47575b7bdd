// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask build`: builds the agent, which contains the kernel programs.

use anyhow::Result;

use crate::{
    cargo::{self, AGENT_PACKAGE, Workspace},
    command,
    setup::{self, Needs},
};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Optimise, as for a node
    #[arg(long)]
    release: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    setup::run(Needs::Build)?;
    let mut command = cargo::cargo("build");
    command.args(["--locked", "--package", AGENT_PACKAGE]);
    let profile = if arguments.release {
        command.arg("--release");
        "release"
    } else {
        "debug"
    };
    command::check(&mut command, "build the agent")?;
    let target = Workspace::read()?.target_directory();
    eprintln!("built {}", target.join(profile).join("portolan").display());
    Ok(())
}
