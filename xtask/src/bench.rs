// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask bench`: benchmarks of the agent and its parts, which pin themselves to one CPU.

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::{
    cargo::{self, Workspace},
    command, lab, setup,
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
    /// Many agents with one API server, beside as many kube-proxies
    Fleet,
    /// From parsed objects to the last map write
    Apply,
    /// From parsed objects to plans
    Planner,
    #[value(hide = true)]
    Attacks,
    #[value(hide = true)]
    Connect,
    #[value(hide = true)]
    ControlPlane,
    #[value(hide = true)]
    Xdp,
}

impl Bench {
    /// Returns what to use instead of a benchmark that is gone.
    const fn instead(self) -> Option<&'static str> {
        match self {
            Self::Attacks => Some("cargo xtask test node"),
            Self::Connect => Some("cargo xtask lab --scenario connections"),
            Self::Xdp => Some("cargo xtask bench packet"),
            Self::ControlPlane => Some("cargo xtask lab --scenario control-plane"),
            _ => None,
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    if let Some(instead) = arguments.bench.instead() {
        bail!("this benchmark is gone: use `{instead}`");
    }
    setup::run_as_root("the benchmark")?;
    if matches!(arguments.bench, Bench::Fleet) {
        let mut command = lab::prepare("bench", lab::FLEET)?;
        return command::check(command.args(&arguments.rest), "run the benchmark");
    }
    // The values of the argument are the names of the cargo targets.
    let target = arguments.bench.to_possible_value();
    let target = target.context("a benchmark has a name")?;
    let mut command = Workspace::read()?.command("bench", "bench", target.get_name())?;
    cargo::build_with_agent(["--bench", target.get_name()], true)?;
    command.args(&arguments.rest);
    command::check(&mut command, "run the benchmark")
}
