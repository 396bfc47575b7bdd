// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Starts kube-proxy on a simulated node, for comparisons.

use std::{
    fs::{self, File},
    path::Path,
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use serde_json::json;

use super::{netns::NetNs, options::METRICS, process::end_with_us};

/// The name of kube-proxy's log file in the folder given to [`start`].
pub const LOG: &str = "kube-proxy.log";
/// The range of all pods' addresses.
pub const CLUSTER_CIDR: &str = "10.40.0.0/16";

/// Starts kube-proxy in `mode` (`nftables` or `iptables`). None for `min_sync_period` keeps the
/// mode's default. kube-proxy's settings and log are written to `folder`.
pub fn start(
    node: &NetNs,
    program: &Path,
    mode: &str,
    min_sync_period: Option<&str>,
    kubeconfig: &Path,
    folder: &Path,
) -> Result<Child> {
    let mut config = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": mode,
        "hostnameOverride": "node-a",
        "clusterCIDR": CLUSTER_CIDR,
        "clientConnection": {"kubeconfig": kubeconfig},
        "conntrack": {"maxPerCore": 0},
        "metricsBindAddress": METRICS.to_string(),
        // portolan also serves node ports at every IPv4 address. The default in mode nftables is
        // only the node's first address.
        "nodePortAddresses": ["0.0.0.0/0"],
    });
    if let Some(period) = min_sync_period {
        config[mode] = json!({"minSyncPeriod": period});
    }
    let file = folder.join("kube-proxy.json");
    fs::write(&file, config.to_string()).context("write kube-proxy's configuration")?;
    let mut command = Command::new(program);
    command.arg("--config").arg(file);
    let log = File::create(folder.join(LOG)).context("make kube-proxy's log")?;
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    end_with_us(&mut command, Signal::SIGKILL);
    node.enter(|| command.spawn())?
        .with_context(|| format!("start {}", program.display()))
}
