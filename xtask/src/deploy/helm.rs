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

    fn run(&self, arguments: &[&str], kubeconfig: Option<&Path>) -> Result<String> {
        let mut command = command::of(&self.program, "--namespace kube-system");
        let homes = ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"];
        command
            .args(arguments)
            .envs(homes.map(|name| (name, self.home.path())))
            .env("KUBECONFIG", kubeconfig.unwrap_or(Path::new("/dev/null")));
        command::output(&mut command, &format!("helm {}", arguments.join(" ")))
    }

    /// Does the same with a chart and values (`key=value`) for it as further arguments.
    fn run_with(
        &self,
        arguments: &[&str],
        chart: &Path,
        values: &[&str],
        kubeconfig: Option<&Path>,
    ) -> Result<String> {
        let chart = chart.display().to_string();
        let values: Vec<_> = values
            .iter()
            .map(|value| format!("--set={value}"))
            .collect();
        let values = values.iter().map(String::as_str);
        let arguments = arguments
            .iter()
            .copied()
            .chain([chart.as_str()])
            .chain(values);
        self.run(&arguments.collect::<Vec<_>>(), kubeconfig)
    }

    /// Returns the YAML of the objects that the chart renders with these values, without those of
    /// `helm test`.
    pub(super) fn template(&self, values: &[&str]) -> Result<String> {
        let start = ["template", "portolan", "--skip-tests"];
        self.run_with(&start, &folder("chart"), values, None)
    }

    pub(super) fn objects(&self, kubectl: &Kubectl, values: &[&str]) -> Result<Objects> {
        kubectl.parse(&self.template(values)?)
    }

    /// Returns the YAML with one more value, `path=value`. A value in braces or brackets is JSON.
    pub(super) fn template_with(&self, values: &[&str], more: &str) -> Result<String> {
        let is_json = more
            .split_once('=')
            .is_some_and(|(_, value)| value.starts_with(['{', '[']));
        let set = if is_json { "--set-json" } else { "--set" };
        let chart = folder("chart").display().to_string();
        let mut arguments = vec!["template", "portolan", "--skip-tests", &chart];
        arguments.extend(values.iter().flat_map(|value| ["--set", *value]));
        // helm lets the last value win.
        arguments.extend([set, more]);
        self.run(&arguments, None)
    }

    /// Runs `helm lint --strict` on the chart; any complaint is an error.
    pub(super) fn lint(&self, values: &[&str]) -> Result<()> {
        let arguments = ["lint", "--strict", "--quiet"];
        self.run_with(&arguments, &folder("chart"), values, None)
            .map(drop)
    }

    /// Runs `helm install` or `helm upgrade` (`action`) in the cluster of `kubeconfig`.
    pub(super) fn place(
        &self,
        action: &str,
        release: &str,
        values: &[&str],
        kubeconfig: &Path,
    ) -> Result<()> {
        let chart = folder("chart");
        self.run_with(&[action, release], &chart, values, Some(kubeconfig))
            .map(drop)
    }

    pub(super) fn with_server(&self, arguments: &[&str], kubeconfig: &Path) -> Result<String> {
        self.run(arguments, Some(kubeconfig))
    }
}
