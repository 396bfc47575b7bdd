// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask bench`: benchmarks of the agent and its parts, which pin themselves to one CPU.

use anyhow::Result;

use crate::{
    cargo::{self, TESTED_PACKAGES, Workspace},
    host, lab,
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
    /// Frames a second by XDP, beside a program that only sends them back
    Xdp,
    /// Connections and datagrams to services, compared with a node without the agent
    Connect,
    /// What clients still get while a node is attacked, by portolan, kube-proxy and no proxy;
    /// writes a report
    Attacks,
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
        Bench::Xdp => "xdp",
        Bench::Connect => "connect",
        Bench::Attacks => "attacks",
        Bench::ControlPlane => "control-plane",
        Bench::Apply => "apply",
        Bench::Planner => "planner",
    };
    Workspace::read()?.require("bench", target)?;
    cargo::build_with_agent(["--bench", target], true)?;
    let mut command = cargo::cargo("bench");
    command
        .arg("--locked")
        .args(TESTED_PACKAGES)
        .args(["--bench", target, "--"])
        .args(&arguments.rest);
    if matches!(arguments.bench, Bench::ControlPlane | Bench::Attacks) {
        control_plane::offer(&mut command)?;
    }
    if matches!(arguments.bench, Bench::Attacks) {
        command.arg("--kube-proxy").arg(lab::kube_proxy()?);
    }
    cargo::check(&mut command, "run the benchmark")
}
