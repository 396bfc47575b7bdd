// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask bench`: benchmarks of the agent's parts and, in the lab, of the whole, which pin themselves to one CPU.

use anyhow::Result;

use crate::{
    cargo::{self, AGENT_PACKAGE, LAB_PACKAGE, Workspace},
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
    /// Connections and datagrams to services, against the same without the agent
    Connect,
    /// The agent beside a real API server
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
    let (package, target) = match arguments.bench {
        Bench::Packet => (AGENT_PACKAGE, "packet"),
        Bench::Connect => (LAB_PACKAGE, "connect"),
        Bench::ControlPlane => (LAB_PACKAGE, "control-plane"),
        Bench::Apply => (AGENT_PACKAGE, "apply"),
        Bench::Planner => (AGENT_PACKAGE, "planner"),
    };
    Workspace::read()?.require(package, "bench", target)?;
    if package == LAB_PACKAGE {
        cargo::build_agent(&["--release"])?;
    }
    let mut command = cargo::cargo("bench");
    command.args(["--locked", "--package", package, "--bench", target, "--"]);
    command.args(&arguments.rest);
    if matches!(arguments.bench, Bench::ControlPlane) {
        control_plane::offer(&mut command)?;
    }
    cargo::check(&mut command, "run the benchmark")
}
