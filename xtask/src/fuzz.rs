// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask fuzz`: the loaded programs against the model, by random sequences; a part of it is a stage of
//! `cargo xtask test`.

use std::process::Command;

use anyhow::Result;

use crate::{
    cargo::{self, TESTED_PACKAGES, Workspace},
    host,
    setup::{self, Needs},
};

/// The test program.
pub(crate) const TARGET: &str = "fuzz";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How long new sequences are made
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Which sequences are made; without it, the day's
    #[arg(long)]
    seed: Option<u64>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    host::require_root("the comparison with the model", "")?;
    setup::run(Needs::Build)?;
    host::ensure_bpffs()?;
    Workspace::read()?.require("test", TARGET)?;
    let mut command: Command = cargo::cargo("test");
    command
        .arg("--locked")
        .args(TESTED_PACKAGES)
        .args(["--test", TARGET, "--", "--nocapture", "sequences_go"])
        .env("PORTOLAN_FUZZ_SECONDS", arguments.seconds.to_string());
    if let Some(seed) = arguments.seed {
        command.env("PORTOLAN_FUZZ_SEED", seed.to_string());
    }
    cargo::check(&mut command, "compare the programs with the model")
}
