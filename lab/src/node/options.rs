// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The agent's options and their command line. Used by `agent`.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    process::Command,
};

use anyhow::{Context, Result};
use ipnet::IpNet;

use super::settings::SocketBalancing;

/// The address of /healthz.
pub const HEALTH: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10256);
/// The address of /metrics, which is kube-proxy's default as well.
pub const METRICS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10249);

/// The agent's options.
pub struct Options<'a> {
    pub binary: &'a Path,
    pub node_name: &'a str,
    pub cluster_cidrs: &'a [IpNet],
    /// The configuration file's text; empty for none.
    pub config: &'a str,
    pub socket_balancing: SocketBalancing,
    /// The API server to follow, in place of the manifests.
    pub kubeconfig: Option<&'a Path>,
    /// The cgroup that the socket hooks are attached to.
    pub cgroup_root: &'a Path,
}

impl Options<'_> {
    /// `portolan run` for an agent with this manifest folder and pin directory. The settings file goes into `folder`.
    pub(super) fn command(
        &self,
        folder: &Path,
        manifests: &Path,
        pin_dir: &Path,
    ) -> Result<Command> {
        let (source, at) = match self.kubeconfig {
            Some(kubeconfig) => ("--kubeconfig", kubeconfig),
            None => ("--manifests", manifests),
        };
        let mut command = Command::new(self.binary);
        command
            .args(["run", source])
            .arg(at)
            .args(["--hostname-override", self.node_name])
            .arg("--pin-dir")
            .arg(pin_dir)
            .args(["--socket-balancing", self.socket_balancing.name()])
            .args(["--healthz-bind-address", &HEALTH.to_string()])
            .args(["--metrics-bind-address", &METRICS.to_string()])
            .arg("--cgroup-root")
            .arg(self.cgroup_root);
        if !self.cluster_cidrs.is_empty() {
            let ranges: Vec<_> = self.cluster_cidrs.iter().map(ToString::to_string).collect();
            command.args(["--cluster-cidr", &ranges.join(",")]);
        }
        if !self.config.is_empty() {
            let file = folder.join("config.yaml");
            fs::write(&file, self.config).context("write the agent's config")?;
            command.arg("--config").arg(file);
        }
        Ok(command)
    }
}
