// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs helm on portolan's chart, with a temporary home folder.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};
use tempfile::TempDir;

use super::folder;
use crate::cargo;

pub(super) const NAMESPACE: &str = "kube-system";

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
        let mut command = Command::new(&self.program);
        command
            .args(arguments)
            .args(["--namespace", NAMESPACE])
            .env("HELM_CACHE_HOME", self.home.path())
            .env("HELM_CONFIG_HOME", self.home.path())
            .env("HELM_DATA_HOME", self.home.path())
            .env("KUBECONFIG", kubeconfig.unwrap_or(Path::new("/dev/null")));
        cargo::output(&mut command, &format!("helm {}", arguments.join(" ")))
    }

    /// Returns the YAML of the objects that the chart renders with these values (`key=value`).
    pub(super) fn template(&self, values: &[&str]) -> Result<String> {
        self.template_of(&chart(), values)
    }

    /// Returns the YAML of the objects that the chart at the path `chart` renders.
    pub(super) fn template_of(&self, chart: &str, values: &[&str]) -> Result<String> {
        let set = set(values);
        let arguments = ["template", "portolan", chart];
        self.run(&[&arguments[..], &as_texts(&set)].concat(), None)
    }

    /// Runs `helm lint --strict` on the chart; any complaint is an error.
    pub(super) fn lint(&self, values: &[&str]) -> Result<()> {
        let chart = chart();
        let set = set(values);
        let arguments = ["lint", "--strict", "--quiet", &chart];
        self.run(&[&arguments[..], &as_texts(&set)].concat(), None)
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
        let chart = chart();
        let set = set(values);
        let arguments = [action, release, &chart];
        self.run(
            &[&arguments[..], &as_texts(&set)].concat(),
            Some(kubeconfig),
        )
        .map(drop)
    }

    pub(super) fn with_server(&self, arguments: &[&str], kubeconfig: &Path) -> Result<String> {
        self.run(arguments, Some(kubeconfig))
    }
}

fn chart() -> String {
    folder("chart").display().to_string()
}

fn set(values: &[&str]) -> Vec<String> {
    values
        .iter()
        .map(|value| format!("--set={value}"))
        .collect()
}

fn as_texts(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}
