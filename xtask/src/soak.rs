// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask soak`: runs ordinary traffic on a node with portolan, without a proxy and with
//! kube-proxy, by the benchmark `soak` of the package `lab`. `cargo xtask test soak` runs three
//! minutes of it.

use std::{path::PathBuf, process::Command};

use anyhow::Result;

use crate::{
    cargo::{self, Workspace},
    command, lab,
    setup::{self, control_plane},
};

const TARGET: &str = "soak";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How long each proxy serves, for each plumbing
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// What is drawn; without it, the day's
    #[arg(long)]
    seed: Option<u64>,
    /// A file to write the tables into, as docs/dev/reliability.md has them
    #[arg(long)]
    report: Option<PathBuf>,
    /// Passed on: --disturb --proxies none,portolan,nftables --plumbing bridge,routed --only KIND
    #[arg(last = true)]
    rest: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    setup::run_as_root("the soak")?;
    let is_disturbed = arguments
        .rest
        .iter()
        .any(|word| word.starts_with("--disturb"));
    let mut command = prepare("bench", is_disturbed)?;
    control_plane::offer(&mut command)?;
    command
        .arg("--kube-proxy")
        .arg(lab::kube_proxy()?)
        .args(["--minutes", &arguments.minutes.to_string()]);
    if let Some(file) = &arguments.report {
        command.arg("--report").arg(file);
    }
    if let Some(seed) = arguments.seed {
        command.args(["--seed", &seed.to_string()]);
    }
    command.args(&arguments.rest);
    command::check(&mut command, "live an ordinary life")
}

/// Builds the agent, and for upgrades one with another layout of its maps; returns the command that
/// runs the benchmark by `cargo bench` or `cargo test`.
pub(crate) fn prepare(subcommand: &str, is_disturbed: bool) -> Result<Command> {
    let command = Workspace::read()?.command(subcommand, "bench", TARGET)?;
    let release = subcommand == "bench";
    cargo::build_with_agent(["--bench", TARGET], release)?;
    if is_disturbed {
        let mut build = cargo::cargo("build");
        build
            .args(["--locked", "--package", cargo::AGENT_PACKAGE])
            .args(["--bin", "portolan-next-layout", "--features", "next-layout"])
            .args(release.then_some("--release"));
        command::check(&mut build, "build the agent for upgrades")?;
    }
    Ok(command)
}
