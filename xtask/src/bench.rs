// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask bench`: proxy-user's benchmarks, which pin themselves to one CPU.

use anyhow::Result;

use crate::{
    cargo::{self, AGENT_PACKAGE, Workspace},
    host,
    setup::{self, Needs, control_plane},
};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// What to measure
    #[arg(value_enum)]
    bench: Bench,
    /// Passed on to the benchmark
    #[arg(last = true)]
    rest: Vec<String>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Bench {
    /// Nanoseconds per packet
    Packet,
    /// Connections and datagrams to services, compared with a node without the agent
    Connect,
    /// The agent with a real API server
    ControlPlane,
    /// From parsed objects to the last map write
    Apply,
    /// From parsed objects to plans
    Planner,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    host::require_root("the benchmark", "")?;
    setup::run(Needs::All)?;
    host::ensure_bpffs()?;
    let target = match arguments.bench {
        Bench::Packet => "packet",
        Bench::Connect => "connect",
        Bench::ControlPlane => "control-plane",
        Bench::Apply => "apply",
        Bench::Planner => "planner",
    };
    Workspace::read()?.require("bench", target)?;
    let mut command = cargo::cargo("bench");
    command.args([
        "--locked",
        "--package",
        AGENT_PACKAGE,
        "--bench",
        target,
        "--",
    ]);
    command.args(&arguments.rest);
    if matches!(arguments.bench, Bench::ControlPlane) {
        control_plane::offer(&mut command)?;
    }
    cargo::check(&mut command, "run the benchmark")
}
