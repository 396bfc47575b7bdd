// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask kube-proxy`: records the real kube-proxy's behaviour again, in files that tests
//! compare portolan with. The example program `kube_proxy` of the package `lab` does it.

use anyhow::Result;

use crate::{
    cargo::{self, Workspace},
    command, host, lab,
    setup::{self, Needs, control_plane},
};

const TARGET: &str = "kube_proxy";

pub(crate) fn run() -> Result<()> {
    host::require_root("the lab", "")?;
    setup::run(Needs::All)?;
    Workspace::read()?.require("example", TARGET)?;
    let mut command = cargo::cargo("run");
    control_plane::offer(&mut command)?;
    command
        .args(["--locked", "--package", "lab", "--example", TARGET, "--"])
        .arg("--kube-proxy")
        .arg(lab::kube_proxy()?)
        .arg("--folder")
        .arg(cargo::root().join("proxy-user/kube-proxy"));
    command::check(&mut command, "ask kube-proxy")
}
