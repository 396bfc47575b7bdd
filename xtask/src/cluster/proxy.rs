// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Installs the cluster's proxy: portolan as a user would install it, or kube-proxy. Called by `cluster up` and
//! `disrupt`.

use std::{fmt, fs, path::PathBuf, time::Duration};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde_json::json;

use super::{
    control::{apply, kubectl},
    daemon::{run, stop, wait},
    images,
    layout::{CLUSTER_CIDR, CONTROL, NODES, Node, server},
    node,
    tools::Tools,
};
use crate::cargo;

const PATIENCE: Duration = Duration::from_secs(60);
const PORTOLAN: &str = "daemonset/portolan";

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

/// A proxy with its settings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Serving {
    pub(super) proxy: Proxy,
    /// portolan's socketBalancing.
    pub(super) balancing: String,
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

/// The proxy that is installed.
pub(super) fn current() -> Serving {
    let text = fs::read_to_string(marker()).unwrap_or_default();
    let (proxy, balancing) = match text.trim().strip_prefix("portolan-") {
        Some(balancing) => (Proxy::Portolan, balancing),
        None => (
            Proxy::from_str(text.trim(), false).unwrap_or(Proxy::None),
            "",
        ),
    };
    Serving {
        proxy,
        balancing: balancing.to_owned(),
    }
}

/// Replaces the proxy that is installed. Both answer health checks on the same port, so the old one's processes end
/// first; its rules or programs in the kernel serve until the new ones do.
pub(super) fn install(tools: &Tools, wanted: &Serving) -> Result<()> {
    let before = current().proxy;
    let gives_way = before != wanted.proxy;
    if gives_way && before.mode().is_some() {
        // Its rules stay: without any rule of their kind the kernel would no longer translate existing connections.
        for node in &NODES {
            stop(&node.place, "kube-proxy")?;
        }
    }
    if gives_way && before == Proxy::Portolan {
        kubectl(tools, &["delete", "-k", &overlay(), "--wait=true"])?;
        let pods = [
            "wait",
            "--for=delete",
            "pod",
            "-l",
            "app=portolan",
            "--timeout=60s",
        ];
        system(tools, &pods)?;
    }
    match wanted.proxy.mode() {
        Some(mode) => start_kube_proxy(tools, mode)?,
        None if wanted.proxy == Proxy::Portolan => start_portolan(tools, &wanted.balancing)?,
        None => {}
    }
    if gives_way && before == Proxy::Portolan {
        kubectl(tools, &["apply", "-k", &drain()])?;
    }
    fs::write(marker(), wanted.to_string()).context("note which proxy is installed")
}

pub(super) fn start_kube_proxy(tools: &Tools, mode: &str) -> Result<()> {
    for node in &NODES {
        // At its start, kube-proxy removes the rules of its other modes.
        stop(&node.place, "kube-proxy")?;
        node::kube_proxy(tools, node, mode).start()?;
    }
    for node in &NODES {
        wait("kube-proxy", PATIENCE, &node.place, "kube-proxy", || {
            is_healthy(node)
        })?;
    }
    Ok(())
}

fn is_healthy(node: &Node) -> bool {
    node::on(node).is_ok_and(|mut command| {
        let answer = run(command.args([
            "curl",
            "--silent",
            "--fail",
            "http://127.0.0.1:10256/healthz",
        ]));
        answer.is_ok()
    })
}

/// The overlay that serves portolan's last flows on every node, and then removes its programs.
fn drain() -> String {
    cargo::root()
        .join("deploy/overlays/drain")
        .display()
        .to_string()
}

/// The overlay for this cluster: kubeadm's, with this machine's path of a node's cgroups.
fn overlay() -> String {
    cargo::root()
        .join("xtask/cluster/overlay")
        .display()
        .to_string()
}

fn start_portolan(tools: &Tools, balancing: &str) -> Result<()> {
    let archive = images::of_agent()?;
    for node in &NODES {
        node::import(tools, node, &archive)?;
    }
    kubectl(
        tools,
        &[
            "delete",
            "-k",
            &drain(),
            "--ignore-not-found",
            "--wait=true",
        ],
    )?;
    apply(tools, &config_map(balancing))?;
    kubectl(tools, &["apply", "-k", &overlay()])?;
    // Running pods keep the image and the settings that they began with.
    restart(tools)?;
    wait_for_portolan(tools)
}

/// Replaces portolan's pods, one after the other.
pub(super) fn restart(tools: &Tools) -> Result<()> {
    system(tools, &["rollout", "restart", PORTOLAN]).map(drop)
}

/// Runs kubectl in the namespace kube-system, where proxies are.
pub(super) fn system(tools: &Tools, arguments: &[&str]) -> Result<String> {
    kubectl(tools, &[&["-n", "kube-system"], arguments].concat())
}

/// Waits until portolan's pods are up to date and ready.
pub(super) fn wait_for_portolan(tools: &Tools) -> Result<()> {
    system(tools, &["rollout", "status", PORTOLAN, "--timeout=90s"])
        .map(drop)
        .or_else(|error| {
            let logs = system(tools, &["logs", PORTOLAN, "--all-pods"]).unwrap_or_default();
            bail!("{error:#}\n{logs}")
        })
}

/// kube-proxy's ConfigMap as kubeadm makes it, which portolan reads.
fn config_map(balancing: &str) -> String {
    let config = format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {{kubeconfig: /var/lib/kube-proxy/kubeconfig.conf}}
clusterCIDR: {CLUSTER_CIDR}
portolan: {{socketBalancing: {balancing}}}
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
