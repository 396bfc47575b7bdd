// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask storm`: clients of every kind send requests while one disturbance of the agent
//! follows another. `cargo xtask test node` runs a minute of it.

use std::path::PathBuf;

use anyhow::Result;

use crate::{
    cargo::Workspace,
    command,
    setup::{self, control_plane},
};

const TEST: &str = "storm::no_request_is_lost_or_gets_a_wrong_backend_in_a_storm";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How long disturbances follow each other
    #[arg(long, default_value_t = 3600)]
    seconds: u64,
    /// Which order they come in; without it, the day's
    #[arg(long)]
    seed: Option<u64>,
    /// New connections and sockets a second, of all clients
    #[arg(long, default_value_t = 200)]
    rate: u64,
    /// Only disturbances that have this in their names
    #[arg(long)]
    only: Option<String>,
    /// A file to write the tables into, as docs/dev/reliability.md has them
    #[arg(long)]
    report: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    setup::run_as_root("the storm")?;
    let mut command = Workspace::read()?.command("test", "test", "node")?;
    command
        .args(["--nocapture", "--exact", TEST])
        .env("PORTOLAN_STORM_SECONDS", arguments.seconds.to_string())
        .env("PORTOLAN_STORM_RATE", arguments.rate.to_string());
    if let Some(file) = &arguments.report {
        command.env("PORTOLAN_STORM_REPORT", file);
    }
    if let Some(seed) = arguments.seed {
        command.env("PORTOLAN_STORM_SEED", seed.to_string());
    }
    if let Some(only) = &arguments.only {
        command.env("PORTOLAN_STORM_ONLY", only);
    }
    control_plane::offer(&mut command)?;
    command::check(&mut command, "go through the storm")
}
