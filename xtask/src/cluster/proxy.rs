// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Installs the cluster's proxy: portolan as a user would install it, or kube-proxy. Called by
//! `cluster up`.

use std::{fmt, path::PathBuf};

use anyhow::{Result, bail};
use clap::ValueEnum;
use serde_json::json;

use super::{
    control::{apply, kubectl},
    images,
    layout::{CLUSTER_CIDR, CONTROL, NODES, server},
    node,
    tools::Tools,
};
use crate::fs;

/// kube-proxy's manifests, as kubeadm installs it.
const MANIFESTS: &str = "xtask/cluster/kube-proxy.yaml";
/// This cluster's overlay: kubeadm's, with this machine's cgroup path.
const OVERLAY: &str = "xtask/cluster/overlay";
/// What removes portolan's programs from labelled nodes once kube-proxy serves them.
const EMERGENCY: &str = "deploy/emergency";

/// kubectl's arguments that remove objects, if they exist.
const DELETE: &str = "delete --ignore-not-found --wait=true";

/// A proxy, or none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(super) enum Proxy {
    Portolan,
    KubeProxyNftables,
    KubeProxyIptables,
    None,
}

impl Proxy {
    fn mode(self) -> Option<&'static str> {
        match self {
            Self::KubeProxyNftables => Some("nftables"),
            Self::KubeProxyIptables => Some("iptables"),
            Self::Portolan | Self::None => None,
        }
    }
}

/// The installed proxy with its settings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Serving {
    pub(super) proxy: Proxy,
    /// The value of portolan's setting socketBalancing; empty for kube-proxy.
    pub(super) balancing: String,
}

impl Serving {
    pub(super) fn new(proxy: Proxy, balancing: &str) -> Self {
        let balancing = balancing.to_owned();
        Self { proxy, balancing }
    }
}

impl fmt::Display for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.proxy.to_possible_value();
        f.write_str(value.as_ref().map_or("none", |value| value.get_name()))?;
        if self.proxy == Proxy::Portolan {
            write!(f, "-{}", self.balancing)?;
        }
        Ok(())
    }
}

fn marker() -> PathBuf {
    CONTROL.folder().join("serving")
}

/// Returns the proxy that the last `install` has installed.
pub(super) fn current() -> Serving {
    let text = fs::read_to_string(marker()).unwrap_or_default();
    let name = text.trim();
    match name.strip_prefix("portolan-") {
        Some(balancing) => Serving::new(Proxy::Portolan, balancing),
        None => Serving::new(Proxy::from_str(name, false).unwrap_or(Proxy::None), ""),
    }
}

/// Replaces the installed proxy, as a user would. The old proxy's rules or programs in the kernel
/// translate packets until those of the new one do.
pub(super) fn install(tools: &Tools, wanted: &Serving) -> Result<()> {
    let before = current().proxy;
    let gives_way = before != wanted.proxy;
    if gives_way && before.mode().is_some() && wanted.proxy.mode().is_none() {
        // kube-proxy's rules stay: without any rule in the kernel's NAT tables the kernel would no
        // longer translate existing connections.
        remove_kube_proxy(tools)?;
    }
    if gives_way && before == Proxy::Portolan {
        kubectl(tools, &format!("{DELETE} -k {OVERLAY}"))?;
        wait_for_end(tools, "app=portolan")?;
    }
    match wanted.proxy.mode() {
        Some(mode) => start_kube_proxy(tools, mode)?,
        None if wanted.proxy == Proxy::Portolan => start_portolan(tools, &wanted.balancing)?,
        None => {}
    }
    if gives_way && before == Proxy::Portolan {
        kubectl(tools, "label nodes --all portolan.dev/proxy=kube-proxy")?;
        kubectl(tools, &format!("apply -k {EMERGENCY}"))?;
    }
    fs::write(marker(), wanted.to_string())
}

fn wait_for_end(tools: &Tools, label: &str) -> Result<()> {
    let wait = format!("wait --for=delete pod -l {label} --timeout=60s");
    system(tools, &wait).map(drop)
}

/// Installs kube-proxy in this mode, as kubeadm does. Its start removes rules of other modes.
pub(super) fn start_kube_proxy(tools: &Tools, mode: &str) -> Result<()> {
    apply(tools, &config_map(mode, "all"))?;
    kubectl(tools, &format!("apply -f {MANIFESTS}"))?;
    // A patch may have excluded kube-proxy from all nodes, and `apply` would not undo that.
    kubectl(tools, &format!("replace -f {MANIFESTS}"))?;
    system(tools, "rollout restart daemonset/kube-proxy")?;
    system(tools, "rollout status daemonset/kube-proxy --timeout=90s").map(drop)
}

/// Removes kube-proxy's pods; its rules in the kernel stay.
pub(super) fn remove_kube_proxy(tools: &Tools) -> Result<()> {
    kubectl(tools, &format!("{DELETE} -f {MANIFESTS}"))?;
    wait_for_end(tools, "k8s-app=kube-proxy")
}

fn start_portolan(tools: &Tools, balancing: &str) -> Result<()> {
    let archive = images::of_agent()?;
    for node in &NODES {
        node::import(tools, node, &archive)?;
    }
    kubectl(tools, &format!("{DELETE} -k {EMERGENCY}"))?;
    kubectl(tools, "label nodes --all portolan.dev/proxy-")?;
    apply(tools, &config_map("", balancing))?;
    kubectl(tools, &format!("apply -k {OVERLAY}"))?;
    // Running pods keep the image and the settings with which they started.
    restart(tools)?;
    wait_for_portolan(tools)
}

/// Starts to replace portolan's pods, one after the other.
pub(super) fn restart(tools: &Tools) -> Result<()> {
    system(tools, "rollout restart daemonset/portolan").map(drop)
}

/// Runs kubectl in the namespace kube-system, where proxies are.
pub(super) fn system(tools: &Tools, words: &str) -> Result<String> {
    kubectl(tools, &format!("-n kube-system {words}"))
}

/// Waits until portolan's pods run with the current settings and are ready.
pub(super) fn wait_for_portolan(tools: &Tools) -> Result<()> {
    let ready = system(tools, "rollout status daemonset/portolan --timeout=90s");
    ready.map(drop).or_else(|error| {
        let logs = system(tools, "logs daemonset/portolan --all-pods").unwrap_or_default();
        bail!("{error:#}\n{logs}")
    })
}

/// Returns kube-proxy's ConfigMap as kubeadm makes it. portolan reads it too.
fn config_map(mode: &str, balancing: &str) -> String {
    let config = format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {{kubeconfig: /var/lib/kube-proxy/kubeconfig.conf}}
clusterCIDR: {CLUSTER_CIDR}
mode: \"{mode}\"
# The nodes' network namespaces do not own the machine's limit.
conntrack: {{maxPerCore: 0}}
portolan: {{socketBalancing: {balancing}, gatewayAPI: true, gatewayServices: true}}
"
    );
    let account = "/var/run/secrets/kubernetes.io/serviceaccount";
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "default",
        "clusters": [{"name": "default", "cluster": {
            "server": server(), "certificate-authority": format!("{account}/ca.crt"),
        }}],
        "users": [{"name": "default", "user": {"tokenFile": format!("{account}/token")}}],
        "contexts": [{"name": "default", "context": {"cluster": "default", "user": "default"}}],
    });
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "kube-proxy", "namespace": "kube-system"},
        "data": {"config.conf": config, "kubeconfig.conf": kubeconfig.to_string()},
    })
    .to_string()
}
