// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line. Each file holds one command, or a few similar ones. Most commands print the
//! contents of the pinned maps. Called by `main`.
#![deny(unsafe_code)]

mod affinity;
pub mod agent;
pub mod args;
mod backends;
mod cell;
pub mod check;
pub mod cleanup;
mod command_line;
pub mod connectivity;
mod conntrack;
pub mod controller;
pub mod counters;
pub mod dump;
mod examples;
pub mod explain;
mod finding;
mod flags;
pub mod flows;
pub mod format;
mod frame;
pub mod init;
mod list;
pub mod maps;
mod names;
mod packets;
mod run;
pub mod services;
pub mod settings;
mod signals;
pub mod sockets;
pub mod status;
mod table;
mod terminal;
pub mod top;
pub mod trace;
pub mod version;
pub mod wait;
pub mod warnings;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use config::telemetry;

pub use self::command_line::parse;
use self::frame::{BAD_INPUT, BadInput};

/// A service proxy for Kubernetes in eBPF.
#[derive(Parser, Debug)]
#[command(name = "portolan", version, args_override_self = true)]
#[command(after_help = examples::of("portolan"), mut_subcommands(examples::add))]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run the agent.
    #[command(version)]
    Run(Box<run::RunArgs>),
    /// Say what is in the way of portolan on this node, and (--migration) what would differ from
    /// kube-proxy. Attaches nothing.
    Check(Box<check::CheckArgs>),
    /// Say where a client's packet or connection goes, and why there is no answer: by the maps, the
    /// programs, and the host beside them. Changes nothing.
    Explain(Box<explain::ExplainArgs>),
    /// List every address and port of every service.
    #[command(visible_alias = "svc")]
    Services(args::ListArgs),
    /// List every endpoint that serves.
    Backends(names::NamedListArgs),
    /// List connections that are translated packet by packet.
    Flows(Box<flows::FlowArgs>),
    /// List sockets that were translated by the socket hooks.
    Sockets(sockets::SocketArgs),
    /// List clients with session affinity, and the endpoint of each.
    Affinity(names::NamedListArgs),
    /// One screen: agent, kernel, attachments, syncs, maps, warnings, problems. Works without an
    /// agent.
    Status(status::StatusArgs),
    /// List every counter with its meaning.
    Counters(counters::CounterArgs),
    /// List what passes to each service port or backend, and how fast: what moves most first.
    Top(top::TopArgs),
    /// Show packets and socket calls as they happen: before and after translation, with verdict and
    /// reason. Nothing stays attached.
    Trace(Box<trace::TraceArgs>),
    /// Connect to a service's addresses from this node: cluster IPs, node ports, load balancers.
    Test(connectivity::TestArgs),
    /// Print the versions of this program, of the agent on this node, and of the kernel.
    Version(version::VersionArgs),
    /// List every map: how full it is, and the kernel memory that it takes.
    Maps(maps::MapArgs),
    /// List what the agent warns of now.
    Warnings(warnings::WarningArgs),
    /// List the settings in force, and where the value of each comes from.
    Config(settings::ConfigArgs),
    /// Write one archive for a bug report, without secrets.
    Dump(dump::DumpArgs),
    /// Print what a shell needs to complete this command line.
    Completions(command_line::CompletionArgs),
    /// Mount a BPF file system if there is none.
    #[command(hide = true)]
    MountBpffs(init::BpffsArgs),
    /// Write for the whole cluster, as the Deployment does: the status of Gateways and routes,
    /// Services for Gateways, events about objects.
    #[command(hide = true)]
    Controller(controller::ControllerArgs),
    /// Prepare the node, as the DaemonSet's init container does: mount a BPF file system if there
    /// is none, set nf_conntrack.
    #[command(hide = true)]
    Init(init::InitArgs),
    /// Wait until another proxy's rules may be removed from this node, or until kube-proxy serves
    /// it.
    #[command(hide = true)]
    Wait(wait::WaitArgs),
    /// Remove all programs, maps and flows of portolan from this node, at once or (--drain) after
    /// the last connection.
    Cleanup(cleanup::CleanupArgs),
}

/// Runs the command that was parsed, and prints the error if it fails. Returns the exit status.
pub fn execute(cli: &Cli) -> ExitCode {
    perform(&cli.command).unwrap_or_else(|error| {
        telemetry::fail(&error);
        match error.is::<BadInput>() {
            true => BAD_INPUT.into(),
            false => ExitCode::FAILURE,
        }
    })
}

fn perform(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Check(args) => return Ok(check::run(args)),
        Command::Explain(args) => return Ok(explain::run(args)),
        Command::Status(args) => return status::run(args),
        Command::Test(args) => return connectivity::run(args),
        Command::Run(args) => run::run(args),
        Command::Controller(args) => controller::run(args),
        Command::Services(args) => services::run(args),
        Command::Backends(args) => backends::run(args),
        Command::Flows(args) => flows::run(args),
        Command::Sockets(args) => sockets::run(args),
        Command::Affinity(args) => affinity::run(args),
        Command::Counters(args) => counters::run(args),
        Command::Top(args) => top::run(args),
        Command::Trace(args) => trace::run(args),
        Command::Maps(args) => maps::run(args),
        Command::Warnings(args) => warnings::run(args),
        Command::Config(args) => settings::run(args),
        Command::Dump(args) => dump::run(args),
        Command::Completions(args) => command_line::complete(args),
        Command::MountBpffs(args) => init::mount_bpffs(args),
        Command::Init(args) => init::run(args),
        Command::Version(args) => version::run(args),
        Command::Wait(args) => wait::run(args),
        Command::Cleanup(args) => cleanup::run(args),
    }
    .map(|()| ExitCode::SUCCESS)
}
