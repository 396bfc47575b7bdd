// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Installs the cluster's proxy, for `cluster up`: portolan as a user would, or kube-proxy.

use anyhow::{Result, bail};
use clap::ValueEnum;

use super::{
    Tools,
    control::{apply, kubectl},
    images,
    layout::{CLUSTER_CIDR, NODES, families},
    node, note, noted,
};

/// kube-proxy's manifests, as kubeadm installs it.
const MANIFESTS: &str = "xtask/cluster/kube-proxy.yaml";
/// kube-proxy's ConfigMap.
const CONFIG_MAP: &str = include_str!("../../cluster/kube-proxy-config.yaml");
/// This cluster's overlay: kubeadm's, with this machine's cgroup path.
const OVERLAY: &str = "xtask/cluster/overlay";
/// What removes portolan's programs from labelled nodes once kube-proxy serves them.
const EMERGENCY: &str = "deploy/emergency";

/// kubectl's arguments that remove objects, if they exist.
const DELETE: &str = "delete --ignore-not-found --wait=true";

/// A proxy, or none.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Proxy {
    Portolan,
    KubeProxyNftables,
    KubeProxyIptables,
    None,
}

impl Proxy {
    /// kube-proxy's mode.
    fn mode(self) -> Option<&'static str> {
        match self {
            Self::KubeProxyNftables => Some("nftables"),
            Self::KubeProxyIptables => Some("iptables"),
            Self::Portolan | Self::None => None,
        }
    }
}

/// Returns the proxy that the last `install` has installed.
pub(super) fn current() -> Proxy {
    noted("serving").unwrap_or(Proxy::None)
}

/// Replaces the installed proxy, as a user would. The old proxy's rules or programs in the kernel
/// translate packets until those of the new one do.
pub(super) fn install(tools: &Tools, wanted: Proxy) -> Result<()> {
    let before = current();
    let leaves_portolan = before == Proxy::Portolan && wanted != before;
    if before.mode().is_some() && wanted.mode().is_none() {
        // kube-proxy's rules stay: without any rule in the kernel's NAT tables the kernel would no
        // longer translate existing connections.
        kubectl(tools, &format!("{DELETE} -f {MANIFESTS}"))?;
        wait_for_end(tools, "k8s-app=kube-proxy")?;
    }
    if leaves_portolan {
        kubectl(tools, &format!("{DELETE} -k {OVERLAY}"))?;
        wait_for_end(tools, "app=portolan")?;
    }
    match wanted.mode() {
        Some(mode) => start_kube_proxy(tools, mode)?,
        None if wanted == Proxy::Portolan => start_portolan(tools)?,
        None => {}
    }
    if leaves_portolan {
        kubectl(tools, "label nodes --all portolan.dev/proxy=kube-proxy")?;
        kubectl(tools, &format!("apply -k {EMERGENCY}"))?;
    }
    note("serving", &wanted)
}

fn wait_for_end(tools: &Tools, label: &str) -> Result<()> {
    let wait = format!("wait --for=delete pod -l {label} --timeout=60s");
    system(tools, &wait).map(drop)
}

/// Writes kube-proxy's ConfigMap.
fn configure(tools: &Tools, mode: &str) -> Result<()> {
    let map = CONFIG_MAP.replace("MODE", mode);
    apply(tools, &map.replace("PODS", &families(CLUSTER_CIDR)))
}

/// Installs kube-proxy in this mode, as kubeadm does. Its start removes rules of other modes.
fn start_kube_proxy(tools: &Tools, mode: &str) -> Result<()> {
    configure(tools, mode)?;
    kubectl(tools, &format!("apply -f {MANIFESTS}"))?;
    // A patch may have excluded kube-proxy from all nodes, and `apply` would not undo that.
    kubectl(tools, &format!("replace -f {MANIFESTS}"))?;
    restart(tools, "daemonset/kube-proxy")
}

fn start_portolan(tools: &Tools) -> Result<()> {
    let archive = images::of_agent()?;
    for node in &NODES {
        node::import(tools, node, &archive)?;
    }
    kubectl(tools, &format!("{DELETE} -k {EMERGENCY}"))?;
    kubectl(tools, "label nodes --all portolan.dev/proxy-")?;
    configure(tools, "")?;
    kubectl(tools, &format!("apply -k {OVERLAY}"))?;
    restart_portolan(tools)
}

/// Replaces portolan's pods, on the nodes and of the controller.
pub(super) fn restart_portolan(tools: &Tools) -> Result<()> {
    restart(tools, "daemonset/portolan")?;
    restart(tools, "deployment/portolan-controller")
}

/// Replaces pods, one after the other: running ones keep the image and the settings with which they
/// started. Waits until the new ones are ready.
fn restart(tools: &Tools, name: &str) -> Result<()> {
    system(tools, &format!("rollout restart {name}"))?;
    let status = format!("rollout status {name} --timeout=90s");
    system(tools, &status).map(drop).or_else(|error| {
        let logs = format!("logs {name} --all-pods");
        let logs = system(tools, &logs).unwrap_or_default();
        bail!("{error:#}\n{logs}")
    })
}

/// Runs kubectl in the namespace kube-system, where proxies are.
pub(super) fn system(tools: &Tools, words: &str) -> Result<String> {
    kubectl(tools, &format!("-n kube-system {words}"))
}
