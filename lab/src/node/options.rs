// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options with which the lab starts an agent, and their command line. Used by `agent`.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    process::Command,
};

use anyhow::{Context, Result};
use ipnet::IpNet;

use super::settings::{SocketBalancing, config_file};

/// The address at which the agent serves /healthz.
pub const HEALTH: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10256);
/// The address at which the agent serves /metrics. It is kube-proxy's default as well.
pub const METRICS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10249);

/// The folder of manifests in an agent's own folder.
pub(super) const MANIFESTS: &str = "manifests";

/// The options with which an agent starts.
pub struct Options<'a> {
    pub binary: &'a Path,
    pub node_name: &'a str,
    pub cluster_cidrs: &'a [IpNet],
    /// Text of the configuration file. The settings of the other fields are added to it.
    pub config: &'a str,
    pub socket_balancing: SocketBalancing,
    /// The kubeconfig of the API server that the agent reads from; None: the agent reads manifests.
    pub kubeconfig: Option<&'a Path>,
    /// The cgroup to which the agent attaches its socket hooks.
    pub cgroup_root: &'a Path,
}

impl<'a> Options<'a> {
    /// Returns options for an agent that reads manifests, on the node `node-a`, with its defaults.
    pub const fn new(binary: &'a Path, cgroup_root: &'a Path) -> Self {
        Self {
            binary,
            node_name: "node-a",
            cluster_cidrs: &[],
            config: "",
            socket_balancing: SocketBalancing::All,
            kubeconfig: None,
            cgroup_root,
        }
    }

    /// Returns the command `portolan run` for an agent with this folder, which pins its maps in
    /// `pin_dir`. The configuration file is written to `folder`.
    pub(super) fn command(&self, folder: &Path, pin_dir: &Path) -> Result<Command> {
        let mut command = Command::new(self.binary);
        command
            .args(["run", "--hostname-override", self.node_name])
            .arg("--pin-dir")
            .arg(pin_dir)
            .args(["--socket-balancing", self.socket_balancing.name()])
            .arg("--cgroup-root")
            .arg(self.cgroup_root);
        if self.kubeconfig.is_none() {
            command.arg("--manifests").arg(folder.join(MANIFESTS));
        }
        let file = folder.join("config.yaml");
        fs::write(&file, self.config_file()).context("write the agent's config")?;
        command.arg("--config").arg(file);
        Ok(command)
    }

    /// Returns the configuration file. All settings are in it, because most flags are ignored if
    /// there is a configuration file.
    fn config_file(&self) -> String {
        let mut more = vec![
            ("healthzBindAddress", HEALTH.to_string()),
            ("metricsBindAddress", METRICS.to_string()),
        ];
        if let Some(kubeconfig) = self.kubeconfig {
            let kubeconfig = kubeconfig.display();
            let connection = format!("{{kubeconfig: '{kubeconfig}'}}");
            more.push(("clientConnection", connection));
        }
        if !self.cluster_cidrs.is_empty() {
            let ranges: Vec<_> = self.cluster_cidrs.iter().map(ToString::to_string).collect();
            more.push(("clusterCIDR", format!("'{}'", ranges.join(","))));
        }
        config_file(self.config, &more)
    }
}
