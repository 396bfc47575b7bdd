// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask lab`: compares portolan with kube-proxy and with no proxy. The benchmark `compare`
//! of the package `lab` does it.

use std::{path::PathBuf, process::Command};

use anyhow::Result;

use crate::{
    cargo::{self, Workspace},
    command,
    setup::{
        self,
        control_plane::{self, KUBE_PROXY, KUBERNETES},
        go,
    },
};

pub(crate) const COMPARE: &str = "compare";
pub(crate) const FLEET: &str = "fleet";

/// Programs that the benchmark calls, each with its Debian package.
const PACKAGES: [(&str, &str); 2] = [("conntrack", "conntrack"), ("iptables", "iptables")];

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Passed on: --scenario connections --services 1,1000 --proxies direct --quick --help
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    setup::run_as_root("the lab")?;
    let mut command = prepare("bench", COMPARE)?;
    // By default the report's path is relative to the root folder of the clone.
    command.args(&arguments.rest).current_dir(cargo::root());
    command::check(&mut command, "run the lab")
}

/// Builds the agent; returns the command that runs a benchmark by `cargo bench` or `cargo test`.
pub(crate) fn prepare(subcommand: &str, target: &str) -> Result<Command> {
    let mut command = Workspace::read()?.command(subcommand, "bench", target)?;
    setup::tools(&PACKAGES)?;
    cargo::build_with_agent(["--bench", target], subcommand == "bench")?;
    control_plane::offer(&mut command)?;
    command.arg("--kube-proxy").arg(kube_proxy()?);
    Ok(command)
}

/// Returns the path of the program kube-proxy, which is built if it is missing.
pub(crate) fn kube_proxy() -> Result<PathBuf> {
    let folder = go::programs(&KUBERNETES, &[KUBE_PROXY], "1 to 2 minutes")?;
    Ok(folder.join(KUBE_PROXY.name))
}
