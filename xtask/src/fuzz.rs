// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask fuzz`: tests the loaded kernel programs against models, with random sequences of
//! packets or socket calls. `cargo xtask test` runs a short part of it.

use std::process::Command;

use anyhow::Result;

use crate::{
    cargo::{self, HOST_PACKAGES, Workspace},
    command, host,
    setup::{self, Needs},
};

/// The test program of proxy-user that sends random packets.
pub(crate) const TARGET: &str = "fuzz";
/// The test program of proxy-user, and the module in it, that makes random socket calls.
pub(crate) const SOCKETS: &str = "sockets";
pub(crate) const SOCKETS_MODULE: &str = "fuzz::";

/// The packages that generate and check sequences.
const PACKAGES: [&str; 4] = [
    "proxy-user",
    "portolan-datapath",
    "portolan-linux",
    "proxy-common",
];

/// What sequences are made of.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum What {
    /// Packets, by test runs of the packet path
    Packets,
    /// Real sockets, with the agent
    Sockets,
}

#[derive(clap::Args)]
pub(crate) struct Arguments {
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

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    host::require_root("the comparison with the model", "")?;
    setup::run(Needs::Build)?;
    host::ensure_bpffs()?;
    let (target, test) = match arguments.what {
        What::Packets => (TARGET, "runner::sequences_go"),
        What::Sockets => (SOCKETS, "fuzz::random_socket_sequences"),
    };
    Workspace::read()?.require("test", target)?;
    let mut command: Command = cargo::cargo("test");
    for package in PACKAGES.iter().filter(|_| arguments.optimised) {
        let setting = format!("profile.dev.package.{package}.opt-level=2");
        command.args(["--config", &setting]);
    }
    command
        .arg("--locked")
        .args(HOST_PACKAGES)
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
