// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line. A file has one command, or a few that are alike. Most commands print the contents of the pinned
//! maps. Called by `main`.

pub mod bpffs;
pub mod check;
pub mod cleanup;
pub mod explain;
mod flags;
pub mod flows;
pub mod init;
mod render;
mod run;
mod services;
#[cfg(test)]
mod settings_page;
pub mod shadow;
pub mod wait;

use std::{path::PathBuf, process::ExitCode};

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
    #[command(
        version,
        after_help = "docs/settings.md explains all settings; some are in the configuration file only."
    )]
    Run(Box<run::RunArgs>),
    /// Say what is in the way of portolan on this node, and (--migration) what would differ from kube-proxy. Attaches nothing.
    #[command(
        after_help = "Exit status: 0 if nothing is in the way and nothing differs, 1 if something differs but works, 2 for input that cannot \
                      be read, 3 if something is in the way."
    )]
    Check(Box<check::CheckArgs>),
    /// Say where a client's packet or connection goes, and why there is no answer: by the maps, the programs, and the host beside them. Changes
    /// nothing.
    #[command(after_help = explain::AFTER_HELP)]
    Explain(Box<explain::ExplainArgs>),
    /// Compare portolan, running as a shadow (`portolan run --shadow`), with the proxy that serves.
    #[command(subcommand)]
    Shadow(shadow::ShadowCommand),
    /// List every address and port of every service.
    Services(ReadArgs),
    /// List every endpoint that serves.
    Backends(ReadArgs),
    /// List connections that are translated packet by packet.
    Flows(flows::FlowArgs),
    /// List sockets that were translated by the socket hooks.
    Sockets(flows::SocketArgs),
    /// List clients with session affinity, and the endpoint of each.
    Affinity(ReadArgs),
    /// Mount a BPF file system if there is none.
    MountBpffs(bpffs::BpffsArgs),
    /// Prepare the node, as the DaemonSet's init container does: mount a BPF file system if there is none, set nf_conntrack.
    Init(init::InitArgs),
    /// Wait until another proxy's rules may be removed from this node.
    Wait(wait::WaitArgs),
    /// Remove all programs, maps and flows of portolan from this node, at once or (--drain) after the last connection.
    Cleanup(cleanup::CleanupArgs),
}

/// Where the maps are.
#[derive(Args, Clone, Debug, Default)]
pub struct Pins {
    /// Directory on a BPF file system in which the agent pins its maps.
    #[arg(long, value_name = "DIR", default_value = DEFAULT_PIN_DIR)]
    pub pin_dir: PathBuf,
}

/// The format of the output.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Output {
    #[default]
    Table,
    Json,
    Yaml,
}

/// Arguments of the commands that print maps.
#[derive(Args, Clone, Debug, Default)]
pub struct ReadArgs {
    #[command(flatten)]
    pub pins: Pins,
    /// Format of the output.
    #[arg(long, short, value_enum, default_value_t)]
    pub output: Output,
}

/// Runs the command, and returns the exit status.
pub fn execute(cli: &Cli) -> anyhow::Result<ExitCode> {
    match &cli.command {
        Command::Check(args) => return Ok(check::run(args)),
        Command::Explain(args) => return Ok(explain::run(args)),
        Command::Shadow(command) => return Ok(shadow::run(command)),
        Command::Run(args) => run::run(args),
        Command::Services(args) => services::services(args),
        Command::Backends(args) => services::backends(args),
        Command::Flows(args) => flows::flows(args),
        Command::Sockets(args) => flows::sockets(args),
        Command::Affinity(args) => flows::affinity(args),
        Command::MountBpffs(args) => bpffs::run(args),
        Command::Init(args) => init::run(args),
        Command::Wait(args) => wait::run(args),
        Command::Cleanup(args) => cleanup::run(args),
    }
    .map(|()| ExitCode::SUCCESS)
}
