// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs kube-proxy on a simulated node, for comparisons.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use serde_json::json;
use tempfile::TempDir;

use super::{
    bpffs::PREFIX,
    netns::NetNs,
    options::METRICS,
    process::{Killed, end_with_us, spawn_logged},
};

/// The range of all pods' addresses.
pub const CLUSTER_CIDR: &str = "10.40.0.0/16";
const LOG: &str = "log";

/// A running kube-proxy with the folder of its settings and log; dropping it leaves its rules.
pub struct KubeProxy {
    child: Killed,
    folder: TempDir,
}

impl KubeProxy {
    /// Starts kube-proxy in `mode` (`nftables` or `iptables`). None for `min_sync_period` keeps the
    /// mode's default.
    pub fn start(
        node: &NetNs,
        program: &Path,
        mode: &str,
        min_sync_period: Option<&str>,
        kubeconfig: &Path,
    ) -> Result<Self> {
        let mut config = json!({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": mode,
            "hostnameOverride": "node-a",
            "clusterCIDR": CLUSTER_CIDR,
            "clientConnection": {"kubeconfig": kubeconfig},
            "conntrack": {"maxPerCore": 0},
            "metricsBindAddress": METRICS.to_string(),
            // portolan also serves node ports at every IPv4 address. The default in mode nftables
            // is only the node's first address.
            "nodePortAddresses": ["0.0.0.0/0"],
        });
        if let Some(period) = min_sync_period {
            config[mode] = json!({"minSyncPeriod": period});
        }
        let folder = TempDir::with_prefix(format!("{PREFIX}{}-", std::process::id()))?;
        let file = folder.path().join("config.json");
        fs::write(&file, config.to_string()).context("write kube-proxy's configuration")?;
        let mut command = Command::new(program);
        command.arg("--config").arg(file);
        end_with_us(&mut command, Signal::SIGKILL);
        let child = spawn_logged(node, &mut command, &folder.path().join(LOG)).map(Killed)?;
        Ok(Self { child, folder })
    }

    pub fn pid(&self) -> u32 {
        self.child.0.id()
    }

    /// Returns the last `lines` lines of the log.
    pub fn log_tail(&self, lines: usize) -> Vec<String> {
        tail(&self.folder.path().join(LOG), lines)
    }
}

/// Returns the last lines of a log file; none if it cannot be read.
pub(super) fn tail(file: &Path, lines: usize) -> Vec<String> {
    let text = fs::read(file).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let all: Vec<_> = text.lines().map(str::to_owned).collect();
    all[all.len().saturating_sub(lines)..].to_vec()
}
