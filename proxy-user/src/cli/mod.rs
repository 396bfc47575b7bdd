// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line: one command per file, each rendering what `datapath::read` finds. Called by `main`.

pub mod run;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::datapath::DEFAULT_PIN_DIR;

/// A service proxy for Kubernetes in eBPF.
#[derive(Parser, Debug)]
#[command(name = "portolan", version, about)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run the agent.
    Run(run::RunArgs),
}

/// Where to read.
#[derive(Args, Clone, Debug)]
pub struct Pins {
    /// Directory on a BPF file system in which the agent pins its maps.
    #[arg(long, value_name = "DIR", default_value = DEFAULT_PIN_DIR)]
    pub pin_dir: PathBuf,
}

/// How to print.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Output {
    #[default]
    Table,
    Json,
    Yaml,
}

/// Runs the command.
pub fn execute(cli: &Cli) -> anyhow::Result<()> {
    match &cli.command {
        Command::Run(args) => run::run(args),
    }
}
