// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The cluster's pod network: the plugin bridge with routes of this cluster's own, flannel, or
//! kube-router with its network policies. Called by `cluster up`.

use std::{fmt, path::PathBuf, time::Duration};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde_json::{Value, json};

use super::{
    control::kubectl,
    daemon::{self, wait},
    layout::{CLUSTER_CIDR, CONTROL, NODES, Node, SERVICE_CIDR, kubeconfig},
    tools::Tools,
};
use crate::fs;

const PATIENCE: Duration = Duration::from_secs(90);

/// Who joins the nodes' pods.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum Cni {
    /// Bridges, and routes between the nodes
    Bridge,
    /// Flannel: VXLAN, rules by iptables
    Flannel,
    /// Flannel: routes between the nodes (host-gw), rules by iptables
    FlannelHostGw,
    /// Flannel: VXLAN, rules by nftables
    FlannelNftables,
    /// kube-router: routes by BGP, network policies by iptables and ipset
    KubeRouter,
}

impl fmt::Display for Cni {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        f.write_str(value.as_ref().map_or("bridge", |value| value.get_name()))
    }
}

fn marker() -> PathBuf {
    CONTROL.folder().join("cni")
}

/// Returns the cluster's pod network.
pub(super) fn current() -> Cni {
    let text = fs::read_to_string(marker()).unwrap_or_default();
    Cni::from_str(text.trim(), false).unwrap_or(Cni::Bridge)
}

/// Returns the pod network to build: `wanted`, or without it the present one. Writes it down. Fails
/// if there is a cluster with another one.
pub(super) fn choose(wanted: Option<Cni>, stands: bool) -> Result<Cni> {
    let cni = match wanted {
        Some(wanted) => wanted,
        None if stands => current(),
        None => Cni::Bridge,
    };
    ensure!(
        !stands || cni == current(),
        "this cluster's pod network is {}, and it stays as long as the cluster: `cargo xtask cluster down` first",
        current()
    );
    fs::create_dir_all(CONTROL.folder())?;
    fs::write(marker(), cni.to_string())?;
    Ok(cni)
}

impl Cni {
    /// Returns whether the nodes need routes to each other's pods from `network`.
    pub(super) fn needs_routes(self) -> bool {
        self == Self::Bridge
    }

    fn is_flannel(self) -> bool {
        matches!(
            self,
            Self::Flannel | Self::FlannelHostGw | Self::FlannelNftables
        )
    }
}

/// Gives each node its range of pod addresses, starts the pod network's daemons and writes the
/// container runtime's configurations. The nodes must be known to the API server.
pub(super) fn start(tools: &Tools, cni: Cni) -> Result<()> {
    for node in &NODES {
        let name = node.place.name;
        let is_known = || kubectl(tools, &format!("get node {name}")).is_ok();
        wait(
            &format!("node {name}"),
            PATIENCE,
            &node.place,
            "kubelet",
            is_known,
        )?;
        let range = json!({"spec": {"podCIDR": node.pods, "podCIDRs": [node.pods]}});
        kubectl(tools, &format!("patch node {name} --patch {range}"))?;
    }
    // kube-router masquerades packets to nodes whose ranges it did not find at its start.
    for node in &NODES {
        if cni.is_flannel() {
            start_flannel(tools, node, cni)?;
        } else if cni == Cni::KubeRouter {
            configure(node, &bridge(node, "kube-bridge", None))?;
            start_kube_router(tools, node)?;
        } else {
            configure(node, &bridge(node, "cni0", None))?;
        }
    }
    Ok(())
}

/// Starts flannel with what its manifest says. The plugin `flannel` of that manifest would call the
/// plugin `bridge` with values from flannel's file; `configure` writes them.
fn start_flannel(tools: &Tools, node: &Node, cni: Cni) -> Result<()> {
    let folder = node.place.folder();
    let (network, lease) = (folder.join("net-conf.json"), folder.join("subnet.env"));
    let backend = match cni {
        Cni::FlannelHostGw => "host-gw",
        _ => "vxlan",
    };
    let configuration = json!({
        "Network": CLUSTER_CIDR, "EnableNFTables": cni == Cni::FlannelNftables,
        "Backend": {"Type": backend},
    });
    fs::write(&network, configuration.to_string())?;
    let line = format!(
        "env PATH={} NODE_NAME={} {} --kube-subnet-mgr --ip-masq --iface=eth0 --kubeconfig-file={} \
         --net-config-path={} --subnet-file={}",
        tools.path(),
        node.place.name,
        tools.flannel()?,
        kubeconfig().display(),
        network.display(),
        lease.display(),
    );
    daemon::start(&node.place, "flanneld", line.split_whitespace())?;
    wait("flannel's lease", PATIENCE, &node.place, "flanneld", || {
        lease.exists()
    })?;
    let text = fs::read_to_string(&lease)?;
    configure(node, &bridge(node, "cni0", Some(mtu(&text)?)))
}

/// Returns FLANNEL_MTU of flannel's file `subnet.env`.
fn mtu(lease: &str) -> Result<u32> {
    let value = lease
        .lines()
        .find_map(|line| line.strip_prefix("FLANNEL_MTU="))
        .context("flannel's lease has no FLANNEL_MTU")?;
    value.trim().parse().context("read FLANNEL_MTU")
}

/// Starts kube-router without its service proxy, and without tunnels: all nodes are on one segment.
fn start_kube_router(tools: &Tools, node: &Node) -> Result<()> {
    let line = format!(
        "env PATH={} KUBE_ROUTER_CNI_CONF_FILE={} {} --kubeconfig={} --hostname-override={} \
         --run-service-proxy=false --enable-overlay=false --service-cluster-ip-range={SERVICE_CIDR}",
        tools.path(),
        file(node).display(),
        tools.kube_router()?,
        kubeconfig().display(),
        node.place.name,
    );
    daemon::start(&node.place, "kube-router", line.split_whitespace())
}

fn file(node: &Node) -> PathBuf {
    node.place.folder().join("cni/10-cluster.conflist")
}

/// Returns the configuration of the plugin bridge. kube-router and flannel masquerade themselves.
fn bridge(node: &Node, name: &str, mtu: Option<u32>) -> Value {
    let mut bridge = json!({
        "type": "bridge", "bridge": name, "isGateway": true, "isDefaultGateway": true, "hairpinMode": true,
        "ipam": {
            "type": "host-local", "ranges": [[{"subnet": node.pods}]],
            "dataDir": node.place.folder().join("cni-addresses"),
        },
    });
    if let Some(mtu) = mtu {
        bridge["mtu"] = json!(mtu);
    }
    bridge
}

/// Writes the configuration that the container runtime reads. Without one a node is not ready.
fn configure(node: &Node, bridge: &Value) -> Result<()> {
    let ports = json!({"type": "portmap", "capabilities": {"portMappings": true}, "snat": true});
    let conflist = json!({"cniVersion": "1.0.0", "name": "cluster", "plugins": [bridge, ports]});
    fs::create_dir_all(node.place.folder().join("cni"))?;
    fs::write(file(node), conflist.to_string())
}
