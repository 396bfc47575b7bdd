// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs helm on portolan's chart, with a temporary home folder.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::TempDir;

use super::{
    folder,
    objects::{Kubectl, Objects},
};
use crate::command;

/// The values that the chart requires on a cluster without kubeadm, as one argument of `--set`.
pub(super) const ADDRESS: &str =
    "apiServer=https://192.0.2.1:6443,settings.clusterCIDR=10.244.0.0/16";

pub(super) struct Helm {
    program: PathBuf,
    home: TempDir,
}

impl Helm {
    pub(super) fn new(program: PathBuf) -> Result<Self> {
        let home = TempDir::with_prefix("portolan-helm-").context("make helm's home")?;
        Ok(Self { program, home })
    }

    /// Runs helm in `deploy/` with the words of a text, and values (`path=value`) for the chart
    /// that the text names. A value in braces or brackets is JSON.
    pub(super) fn run(
        &self,
        words: &str,
        values: &[&str],
        kubeconfig: Option<&Path>,
    ) -> Result<String> {
        let mut command = command::of(&self.program, "--namespace kube-system");
        let homes = ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"];
        command
            .args(words.split(' '))
            .current_dir(folder(""))
            .envs(homes.map(|name| (name, self.home.path())))
            .env("KUBECONFIG", kubeconfig.unwrap_or(Path::new("/dev/null")));
        for value in values {
            let (_, inner) = value.split_once('=').unwrap_or_default();
            // `[::]:1` is an address.
            let is_json = inner.starts_with('{') || inner.starts_with('[') && inner.ends_with(']');
            command.args([if is_json { "--set-json" } else { "--set" }, value]);
        }
        let values = values.join(" ");
        command::output(&mut command, &format!("helm {words} {values}"))
    }

    /// Returns the YAML of the objects that the chart renders with these values, without those of
    /// `helm test`.
    pub(super) fn template(&self, values: &[&str]) -> Result<String> {
        self.run("template portolan --skip-tests ./chart", values, None)
    }

    pub(super) fn objects(&self, kubectl: &Kubectl, values: &[&str]) -> Result<Objects> {
        kubectl.parse(&self.template(values)?)
    }
}
