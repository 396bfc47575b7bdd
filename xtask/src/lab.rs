// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask lab`, `soak`, `bench`, `demo` and `kube-proxy`: each builds the agent and a program
//! beside it, of the package `lab` or the agent's, and runs it with the rest of the command line.

use std::{path::PathBuf, process::Command};

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::{
    cargo::{self, Workspace},
    command, host,
    setup::{
        self, Needs,
        control_plane::{self, KUBE_PROXY, KUBERNETES},
        go,
    },
};

pub(crate) const COMPARE: &str = "compare";
pub(crate) const FLEET: &str = "fleet";
const SOAK: &str = "soak";
const DEMO: &str = "demo";

/// Programs that the comparison calls, each with its Debian package.
const PACKAGES: [(&str, &str); 2] = [("conntrack", "conntrack"), ("iptables", "iptables")];

/// What the program that is run gets.
#[derive(clap::Args)]
pub(crate) struct Passed {
    /// Passed on to the program, whose own words `-- --help` lists
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

impl Passed {
    /// Returns the words for the program. A `--` only ends the words of xtask.
    pub(crate) fn words(&self) -> impl Iterator<Item = &String> {
        self.rest.iter().filter(|word| *word != "--")
    }
}

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// What to measure
    #[arg(value_enum)]
    bench: Bench,
    #[command(flatten)]
    passed: Passed,
}

/// The values are the names of the cargo targets.
#[derive(Clone, Copy, ValueEnum)]
enum Bench {
    /// Nanoseconds per packet
    Packet,
    /// Many agents with one API server, beside as many kube-proxies
    Fleet,
    /// From parsed objects to plans, and to the last map write
    Planner,
}

/// Runs one benchmark; each pins itself to one CPU.
pub(crate) fn bench(arguments: &Arguments) -> Result<()> {
    setup::run_as_root("the benchmark")?;
    let target = arguments.bench.to_possible_value();
    let target = target.context("a benchmark has a name")?;
    let mut command = match arguments.bench {
        Bench::Fleet => prepare("bench", FLEET)?,
        _ => built("bench", target.get_name())?,
    };
    command::check(command.args(arguments.passed.words()), "run the benchmark")
}

/// Compares portolan with kube-proxy and with no proxy.
pub(crate) fn compare(passed: &Passed) -> Result<()> {
    setup::run_as_root("the lab")?;
    let mut command = prepare("bench", COMPARE)?;
    command::check(command.args(passed.words()), "run the lab")
}

/// Runs ordinary traffic on a node, or disturbs it.
pub(crate) fn soak(passed: &Passed) -> Result<()> {
    setup::run_as_root("the soak")?;
    let is_disturbed = passed.words().any(|word| word.starts_with("--disturb"));
    let mut command = prepare_soak("bench", is_disturbed)?;
    offer_kube_proxy(&mut command)?;
    command::check(command.args(passed.words()), "live an ordinary life")
}

/// Runs the demo in the dev profile: its first build takes about half the time of a release build,
/// and the kernel programs are optimised in both.
pub(crate) fn demo(passed: &Passed) -> Result<()> {
    setup::run_as_root("the demo")?;
    let workspace = Workspace::read()?;
    workspace.require("example", DEMO)?;
    cargo::build_with_agent(["--example", DEMO], false)?;
    let examples = workspace.target_directory().join("debug/examples");
    let mut command = Command::new(examples.join(DEMO));
    command.current_dir(cargo::root()).args(passed.words());
    command::check(&mut command, "run the demo")
}

/// Records anew in proxy-user/kube-proxy what a real kube-proxy does with settings, and its
/// metrics.
pub(crate) fn ask_kube_proxy() -> Result<()> {
    const TARGET: &str = "kube_proxy";
    host::require_root("the lab", "")?;
    setup::run(Needs::All)?;
    Workspace::read()?.require("example", TARGET)?;
    let mut command = cargo::cargo("run");
    command.args(["--locked", "--package", "lab", "--example", TARGET, "--"]);
    offer_kube_proxy(&mut command)?;
    let folder = cargo::root().join("proxy-user/kube-proxy");
    command::check(command.arg("--folder").arg(folder), "ask kube-proxy")
}

/// Builds the agent and a benchmark; returns the command that runs the benchmark by `cargo bench`
/// or `cargo test`.
fn built(subcommand: &str, target: &str) -> Result<Command> {
    let command = Workspace::read()?.command(subcommand, "bench", target)?;
    cargo::build_with_agent(["--bench", target], subcommand == "bench")?;
    Ok(command)
}

/// Does the same for a benchmark that runs kube-proxy beside portolan.
pub(crate) fn prepare(subcommand: &str, target: &str) -> Result<Command> {
    setup::tools(&PACKAGES)?;
    let mut command = built(subcommand, target)?;
    offer_kube_proxy(&mut command)?;
    Ok(command)
}

/// Does the same for the soak, and builds for upgrades an agent with another layout of its maps.
pub(crate) fn prepare_soak(subcommand: &str, is_disturbed: bool) -> Result<Command> {
    let command = built(subcommand, SOAK)?;
    if is_disturbed {
        let mut build = cargo::cargo("build");
        build
            .arg("--locked")
            .args(cargo::HOST_PACKAGES)
            .args([
                "--bin=portolan-next-layout",
                "--features=proxy-user/next-layout",
            ])
            .args((subcommand == "bench").then_some("--release"));
        command::check(&mut build, "build the agent for upgrades")?;
    }
    Ok(command)
}

fn offer_kube_proxy(command: &mut Command) -> Result<()> {
    control_plane::offer(command)?;
    command.arg("--kube-proxy").arg(kube_proxy()?);
    Ok(())
}

/// Returns the path of the program kube-proxy, which is built if it is missing.
pub(crate) fn kube_proxy() -> Result<PathBuf> {
    let folder = go::programs(&KUBERNETES, &[KUBE_PROXY], "1 to 2 minutes")?;
    Ok(folder.join(KUBE_PROXY.name))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        passed: Passed,
    }

    #[test]
    fn all_words_but_the_dashes_between_reach_the_program() {
        let given = "soak --minutes 5 -- --disturb=drained --plumbing bridge";
        let line = Line::parse_from(given.split(' '));
        let words: Vec<_> = line.passed.words().map(String::as_str).collect();
        assert_eq!(
            words.join(" "),
            given.replace("soak ", "").replace("-- ", "")
        );
    }
}
