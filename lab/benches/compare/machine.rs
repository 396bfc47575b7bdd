// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Describes the machine and the programs' versions for the report.

use std::{path::Path, process::Command};

use serde::{Deserialize, Serialize};

use lab::{load::machine, node::topology::Plumbing};

/// The machine, the versions of the measured programs, and the settings of the run.
#[derive(Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) date: String,
    pub(crate) processor: String,
    pub(crate) processors: usize,
    pub(crate) kernel: String,
    pub(crate) portolan: String,
    pub(crate) kube_proxy: String,
    pub(crate) nft: String,
    pub(crate) iptables: String,
    pub(crate) rounds: u32,
    pub(crate) plumbing: String,
}

pub(crate) fn describe(kube_proxy: &Path, plumbing: Plumbing, rounds: u32) -> Machine {
    Machine {
        date: machine::today(),
        processor: machine::processor(),
        processors: machine::processors(),
        kernel: machine::kernel(),
        portolan: env!("CARGO_PKG_VERSION").to_owned(),
        kube_proxy: version(&kube_proxy.display().to_string()),
        nft: version("nft"),
        iptables: version("iptables"),
        rounds,
        plumbing: plumbing.name().to_owned(),
    }
}

/// Returns the first line of what a program says to `--version`; "unknown" if there is none.
fn version(program: &str) -> String {
    let output = Command::new(program).arg("--version").output();
    let said = output.map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&said)
        .lines()
        .next()
        .unwrap_or("unknown")
        .trim()
        .to_owned()
}
