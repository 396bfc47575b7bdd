// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask lab`, `soak`, `bench`, `demo`, `conformance`, `kube-proxy` and `fuzz`: each builds
//! the agent and a program beside it, of the package `lab` or the agent's, and runs it with the
//! rest of the command line.

use std::process::Command;

use anyhow::{Context, Result};

use crate::{
    cargo::{self, Workspace},
    command,
    setup::{self, go},
};

pub(crate) const COMPARE: &str = "compare";
pub(crate) const FLEET: &str = "fleet";
const SOAK: &str = "soak";
const DEMO: &str = "demo";

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

#[derive(Clone, Copy, clap::ValueEnum)]
enum Bench {
    /// Nanoseconds per packet
    Packet,
    /// Many agents with one API server, beside as many kube-proxies
    Fleet,
}

/// Runs one benchmark; each pins itself to one CPU.
pub(crate) fn bench(arguments: &Arguments) -> Result<()> {
    setup::run_as_root("the benchmark")?;
    let mut command = match arguments.bench {
        Bench::Packet => built("bench", "packet")?,
        Bench::Fleet => prepare("bench", FLEET)?,
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
    cargo::build_with_agent(["--example", DEMO], false)?;
    let folder = Workspace::read()?.target_directory();
    let mut command = Command::new(folder.join("debug/examples").join(DEMO));
    command.current_dir(cargo::root()).args(passed.words());
    command::check(&mut command, "run the demo")
}

/// Records anew in proxy-user/kube-proxy a real kube-proxy's metrics, and what settings mean to it.
pub(crate) fn ask_kube_proxy() -> Result<()> {
    const TARGET: &str = "kube_proxy";
    setup::run_as_root("the lab")?;
    let mut command = cargo::cargo("run");
    command.args(["--locked", "--package", "lab", "--example", TARGET, "--"]);
    offer_kube_proxy(&mut command)?;
    let folder = cargo::root().join("proxy-user/kube-proxy");
    command::check(command.arg("--folder").arg(folder), "ask kube-proxy")
}

/// Builds the agent and a benchmark; returns the command that runs it by cargo's `bench` or `test`.
fn built(subcommand: &str, target: &str) -> Result<Command> {
    cargo::build_with_agent(["--bench", target], subcommand == "bench")?;
    Ok(cargo::program(subcommand, "--bench", target))
}

/// Does the same for a benchmark that runs kube-proxy beside portolan.
pub(crate) fn prepare(subcommand: &str, target: &str) -> Result<Command> {
    setup::tools("conntrack iptables")?;
    let mut command = built(subcommand, target)?;
    offer_kube_proxy(&mut command)?;
    Ok(command)
}

/// Does the same for the soak, and builds for upgrades an agent with another layout of its maps.
pub(crate) fn prepare_soak(subcommand: &str, is_disturbed: bool) -> Result<Command> {
    let command = built(subcommand, SOAK)?;
    if is_disturbed {
        let words = "--locked --bin portolan-next-layout --features proxy-user/next-layout";
        let mut build = cargo::cargo("build");
        build
            .args(cargo::HOST_PACKAGES)
            .args(words.split(' '))
            .args((subcommand == "bench").then_some("--release"));
        command::check(&mut build, "build the agent for upgrades")?;
    }
    Ok(command)
}

fn offer_kube_proxy(command: &mut Command) -> Result<()> {
    go::offer_control_plane(command)?;
    command
        .arg("--kube-proxy")
        .arg(go::program("kubernetes", "kube-proxy")?);
    Ok(())
}

/// The test program of proxy-user that runs conformance cases.
pub(crate) const CONFORMANCE: &str = "conformance";
/// The cases' objects from an API server.
pub(crate) const API: &str = "api";

/// Tests the running agent with the cases of conformance/FORMAT.md and real packets.
pub(crate) fn conformance(passed: &Passed) -> Result<()> {
    setup::run_as_root("the conformance runner")?;
    // `cargo test` does not start this program: its count must be the last line of the output, and
    // cargo would print another one.
    let mut command = Command::new(cargo::build_test(CONFORMANCE, |_| ())?);
    if passed.words().any(|word| word.ends_with(API)) {
        go::offer_control_plane(&mut command)?;
    }
    let status = command.args(passed.words()).status();
    let status = status.context("start the conformance runner")?;
    if !status.success() {
        std::process::exit(status.code().unwrap_or(1));
    }
    Ok(())
}

/// The test program of proxy-user that sends random packets.
pub(crate) const FUZZ: &str = "fuzz";
/// The test program of proxy-user, and the module in it, that makes random socket calls.
pub(crate) const SOCKETS: &str = "sockets";
pub(crate) const SOCKETS_MODULE: &str = "fuzz::";

/// The packages that generate and check sequences.
const PACKAGES: &str = "proxy-user portolan-datapath portolan-linux proxy-common";

/// What sequences are made of.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum What {
    /// Packets, by test runs of the packet path
    Packets,
    /// Real sockets, with the agent
    Sockets,
}

#[derive(clap::Args)]
pub(crate) struct Fuzz {
    /// What sequences are made of
    #[arg(long, value_enum, default_value_t = What::Packets)]
    what: What,
    /// How long new sequences are made
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Which sequences are made; without it, the day's
    #[arg(long)]
    seed: Option<u64>,
    /// Only short sequences of packets: more beginnings, fewer packets
    #[arg(long)]
    short: bool,
    /// Builds it optimised first, which takes minutes: for long runs
    #[arg(long)]
    optimised: bool,
}

/// Tests the loaded kernel programs against models, with random sequences of packets or socket
/// calls; `cargo xtask test` runs a short part of it.
pub(crate) fn fuzz(arguments: &Fuzz) -> Result<()> {
    setup::run_as_root("the comparison with the model")?;
    let (target, test) = match arguments.what {
        What::Packets => (FUZZ, "runner::sequences_go"),
        What::Sockets => (SOCKETS, "fuzz::random_socket_sequences"),
    };
    let mut command = cargo::cargo("test");
    for package in PACKAGES.split(' ').filter(|_| arguments.optimised) {
        let setting = format!("profile.dev.package.{package}.opt-level=2");
        command.args(["--config", &setting]);
    }
    command
        .arg("--locked")
        .args(cargo::HOST_PACKAGES)
        .args(["--test", target, "--", "--nocapture", test])
        .env("PORTOLAN_FUZZ_SECONDS", arguments.seconds.to_string());
    if let Some(seed) = arguments.seed {
        command.env("PORTOLAN_FUZZ_SEED", seed.to_string());
    }
    if arguments.short {
        command.env("PORTOLAN_FUZZ_SHORT", "1");
    }
    command::check(&mut command, "compare the programs with the model")
}
