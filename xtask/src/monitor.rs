// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask monitor`: tests the dashboard and alerts of `deploy/chart` with a real Prometheus
//! and a real agent. The example program `monitor` of the package `lab` does it. Not a part of
//! `cargo xtask test`, because building Prometheus takes minutes.

use std::process::Command;

use anyhow::Result;

use crate::{
    cargo::{self, Workspace},
    command,
    setup::{
        self, control_plane,
        go::{self, Module, Program},
    },
};

const TARGET: &str = "monitor";
const PICTURE: &str = "docs/dashboard.svg";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Draw the dashboard's panels into docs/dashboard.svg, after a minute of load
    #[arg(long)]
    picture: bool,
}

const PROMETHEUS: Module = Module {
    folder: "prometheus",
    versioned: "github.com/prometheus/prometheus",
};

/// The programs of Prometheus, built without service discovery for the cloud providers.
const PROGRAMS: [Program; 2] = [
    Program::new(
        "prometheus",
        "github.com/prometheus/prometheus/cmd/prometheus",
    )
    .tagged("remove_all_sd"),
    Program::new("promtool", "github.com/prometheus/prometheus/cmd/promtool")
        .tagged("remove_all_sd"),
];

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    setup::run_as_root("the monitored agent")?;
    let workspace = Workspace::read()?;
    workspace.require("example", TARGET)?;
    let programs = go::programs(&PROMETHEUS, &PROGRAMS, "3 to 8 minutes")?;
    cargo::build_with_agent(["--example", TARGET], false)?;
    let examples = workspace.target_directory().join("debug/examples");
    let mut command = Command::new(examples.join(TARGET));
    control_plane::offer(&mut command)?;
    command.arg("--programs").arg(programs);
    if arguments.picture {
        command.arg("--picture").arg(PICTURE);
    }
    command.current_dir(cargo::root());
    command::check(&mut command, "run the queries by Prometheus")
}
