// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask lab`: portolan beside kube-proxy and beside no proxy, by the benchmark `compare` of the crate lab.

use std::process::Command;

use anyhow::Result;

use crate::{
    cargo::{self, LAB_PACKAGE, Workspace},
    host,
    setup::{
        self, Needs,
        control_plane::{self, KUBE_PROXY, KUBERNETES},
        go,
    },
};

const TARGET: &str = "compare";

/// Programs that are called, with the Debian package of each.
const PACKAGES: [(&str, &str); 3] = [
    ("conntrack", "conntrack"),
    ("iperf3", "iperf3"),
    ("iptables", "iptables"),
];

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Passed on: --services 1,1000 --proxies direct,portolan-socket --quick --help
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    host::require_root("the lab", "")?;
    setup::run(Needs::All)?;
    host::ensure_bpffs()?;
    let mut command = cargo::cargo("bench");
    cargo::build_agent(&["--release"])?;
    prepare(&mut command)?;
    // Where the report goes is told from here.
    command.args(&arguments.rest).current_dir(cargo::root());
    cargo::check(&mut command, "run the lab")
}

/// Finishes a command that runs the benchmark: what it needs is there, and it knows where.
pub(crate) fn prepare(command: &mut Command) -> Result<()> {
    Workspace::read()?.require(LAB_PACKAGE, "bench", TARGET)?;
    setup::tools(&PACKAGES)?;
    control_plane::offer(command)?;
    let kube_proxy =
        go::programs(&KUBERNETES, &[KUBE_PROXY], "1 to 2 minutes")?.join(KUBE_PROXY.name);
    command
        .args([
            "--locked",
            "--package",
            LAB_PACKAGE,
            "--bench",
            TARGET,
            "--",
        ])
        .arg("--kube-proxy")
        .arg(kube_proxy);
    Ok(())
}
