// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds a real kube-apiserver, etcd and kubectl for tests in the folder that envtest uses, else
//! builds them once from the Go module xtask/go/kubernetes. Called by `test`, `conformance` and
//! `bench`.

use std::{env, path::PathBuf, process::Command};

use anyhow::{Result, ensure};

use super::go::{self, Module, Program};
use crate::host;

/// The environment variable with the folder of the three programs, by envtest's convention.
const VARIABLE: &str = "KUBEBUILDER_ASSETS";

pub(crate) const KUBERNETES: Module = Module {
    folder: "kubernetes",
    versioned: "k8s.io/kubernetes",
};

pub(crate) const PROGRAMS: [Program; 3] = [
    Program::new("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
    Program::new("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
    Program::new("etcd", "go.etcd.io/etcd/server/v3"),
];

pub(crate) const KUBE_PROXY: Program =
    Program::new("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy");

/// Sets `VARIABLE` in a command's environment; builds the programs if they are missing.
pub(crate) fn offer(command: &mut Command) -> Result<()> {
    command.env(VARIABLE, find()?);
    Ok(())
}

/// Returns the folder with kube-apiserver, etcd and kubectl.
pub(crate) fn find() -> Result<PathBuf> {
    let Some(folder) = env::var_os(VARIABLE).filter(|folder| !folder.is_empty()) else {
        return go::programs(&KUBERNETES, &PROGRAMS, "4 to 8 minutes");
    };
    let folder = PathBuf::from(folder);
    ensure!(
        PROGRAMS
            .iter()
            .all(|program| host::is_executable(&folder.join(program.name))),
        "{VARIABLE} names {}, which lacks one of kube-apiserver, kubectl and etcd; complete it, or unset \
         {VARIABLE} to have them built",
        folder.display()
    );
    Ok(folder)
}
