// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask storm`: clients of every kind send requests while one disturbance of the agent
//! follows another. `--write` writes the tables of docs/reliability.md. `cargo xtask test node`
//! runs a minute of it.

use std::{fs, path::Path};

use anyhow::{Context, Result};

use crate::{
    cargo::{self, TESTED_PACKAGES, Workspace, root},
    host,
    setup::{self, Needs, control_plane},
};

const TEST: &str = "storm::nothing_is_lost_and_nobody_is_answered_by_another_in_a_storm";
const PAGE: &str = "docs/reliability.md";
/// The comment in docs/reliability.md after which `--write` replaces the text.
const MARK: &str = "<!-- Written by cargo xtask storm --write -->\n";

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
    /// Writes the tables into docs/reliability.md, also if something was lost
    #[arg(long)]
    write: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    host::require_root("the storm", "")?;
    setup::run(Needs::All)?;
    host::ensure_bpffs()?;
    let workspace = Workspace::read()?;
    workspace.require("test", "node")?;
    let report = workspace.target_directory().join("storm.md");
    let mut command = cargo::cargo("test");
    command
        .arg("--locked")
        .args(TESTED_PACKAGES)
        .args(["--test", "node", "--", "--nocapture", "--exact", TEST])
        .env("PORTOLAN_STORM_SECONDS", arguments.seconds.to_string())
        .env("PORTOLAN_STORM_RATE", arguments.rate.to_string())
        .env("PORTOLAN_STORM_REPORT", &report);
    if let Some(seed) = arguments.seed {
        command.env("PORTOLAN_STORM_SEED", seed.to_string());
    }
    if let Some(only) = &arguments.only {
        command.env("PORTOLAN_STORM_ONLY", only);
    }
    control_plane::offer(&mut command)?;
    // If the benchmark writes no report, that of an earlier run must not be used.
    _ = fs::remove_file(&report);
    let result = cargo::check(&mut command, "go through the storm");
    if arguments.write {
        write(&report)?;
    }
    result
}

/// Replaces the tables in docs/reliability.md.
fn write(report: &Path) -> Result<()> {
    let tables = fs::read_to_string(report).context("the storm has made no tables")?;
    let page = root().join(PAGE);
    let text = fs::read_to_string(&page).with_context(|| format!("read {PAGE}"))?;
    let (kept, _) = text
        .split_once(MARK)
        .with_context(|| format!("{PAGE} lacks the line {MARK}"))?;
    fs::write(&page, format!("{kept}{MARK}\n{}\n", tables.trim()))
        .with_context(|| format!("write {PAGE}"))
}
