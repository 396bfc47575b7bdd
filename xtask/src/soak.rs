// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask soak`: runs ordinary traffic on a node with portolan, without a proxy and with
//! kube-proxy, by the benchmark `soak` of the package `lab`. `--write` writes the tables of
//! docs/dev/reliability.md. `cargo xtask test soak` runs two minutes of it.

use std::process::Command;

use anyhow::Result;

use crate::{
    cargo::{self, Workspace},
    command, lab,
    reliability::Tables,
    setup::{self, control_plane},
};

const TARGET: &str = "soak";
/// What follows the tables in docs/dev/reliability.md.
const END: &str = "\n<!-- End of what cargo xtask soak --write has written -->\n";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How long each proxy serves, for each plumbing
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// What is drawn; without it, the day's
    #[arg(long)]
    seed: Option<u64>,
    /// Writes the tables into docs/dev/reliability.md, also if something failed
    #[arg(long)]
    write: bool,
    /// Passed on: --proxies none,portolan,nftables --plumbing bridge,routed --only KIND
    #[arg(last = true)]
    rest: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    setup::run_as_root("the soak")?;
    let tables = Tables::new(TARGET, END)?;
    let mut command = prepare("bench")?;
    control_plane::offer(&mut command)?;
    command
        .arg("--kube-proxy")
        .arg(lab::kube_proxy()?)
        .arg("--report")
        .arg(tables.file())
        .args(["--minutes", &arguments.minutes.to_string()]);
    if let Some(seed) = arguments.seed {
        command.args(["--seed", &seed.to_string()]);
    }
    command.args(&arguments.rest);
    let result = command::check(&mut command, "live an ordinary life");
    if arguments.write {
        tables.write()?;
    }
    result
}

/// Builds the agent; returns the command that runs the benchmark by `cargo bench` or `cargo test`.
pub(crate) fn prepare(subcommand: &str) -> Result<Command> {
    let command = Workspace::read()?.command(subcommand, "bench", TARGET)?;
    cargo::build_with_agent(["--bench", TARGET], subcommand == "bench")?;
    Ok(command)
}
