// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Names, addresses, folders and network namespaces of the cluster, by which `cluster up` builds it
//! and `cluster down` finds it. The files in xtask/cluster have some of them, too.

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use super::control::run;
use crate::command;

/// The folder of the cluster's keys, configurations, data and logs.
pub(super) const STATE: &str = "/var/lib/portolan-cluster";
/// The folder of the cluster's sockets, and of the nodes' mount points.
pub(super) const RUN: &str = "/run/portolan-cluster";

pub(super) const CONTROL: Namespace = Namespace {
    name: "control",
    address: "192.168.77.10",
};
/// Three nodes, each in its own zone, because some of Kubernetes' e2e tests need three.
pub(super) const NODES: [Node; 3] = [
    node("node-a", "192.168.77.11", "10.244.1.0/24", "zone-a"),
    node("node-b", "192.168.77.12", "10.244.2.0/24", "zone-b"),
    node("node-c", "192.168.77.13", "10.244.3.0/24", "zone-c"),
];

const fn node(
    name: &'static str,
    address: &'static str,
    pods: &'static str,
    zone: &'static str,
) -> Node {
    let place = Namespace { name, address };
    Node { place, pods, zone }
}

/// The network namespace of the bridge that connects the control plane and the nodes.
pub(super) const SWITCH: &str = "portolan-switch";

pub(super) const CLUSTER_CIDR: &str = "10.244.0.0/16";
pub(super) const SERVICE_CIDR: &str = "10.96.0.0/16";
/// The cluster IP of Kubernetes' own service: the first address of the service range.
pub(super) const API_SERVICE: &str = "10.96.0.1";
pub(super) const DOMAIN: &str = "cluster.local";

/// A network namespace (of a node or of the control plane) with an address on the common bridge.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Namespace {
    pub(super) name: &'static str,
    pub(super) address: &'static str,
}

/// A Kubernetes node, made of namespaces on this machine.
pub(super) struct Node {
    pub(super) place: Namespace,
    /// The address range of the pods on this node.
    pub(super) pods: &'static str,
    pub(super) zone: &'static str,
}

/// Returns the network namespaces of the control plane and of all nodes.
pub(super) fn places() -> impl Iterator<Item = Namespace> {
    std::iter::once(CONTROL).chain(NODES.iter().map(|node| node.place))
}

impl Namespace {
    pub(super) fn netns(&self) -> String {
        format!("portolan-{}", self.name)
    }
    /// Returns the folder with the files of this node or control plane.
    pub(super) fn folder(&self) -> PathBuf {
        Path::new(STATE).join(self.name)
    }
    /// Returns the cgroup2 folder that contains all processes of this node or control plane.
    pub(super) fn cgroup(&self) -> Result<PathBuf> {
        Ok(cgroup()?.join(self.name))
    }
}

/// Returns the file that says whether the cluster is a dual-stack one.
pub(super) fn dual_stack() -> PathBuf {
    CONTROL.folder().join("dual-stack")
}

pub(super) fn is_dual_stack() -> bool {
    std::fs::read_to_string(dual_stack()).is_ok_and(|text| text == "true")
}

/// Returns an address or a range, in a dual-stack cluster with that of IPv6 behind a comma.
pub(super) fn families(v4: &str) -> String {
    match v6(v4) {
        Some(v6) => format!("{v4},{v6}"),
        None => v4.to_owned(),
    }
}

/// Returns the IPv6 address or range with the last four bytes of one of IPv4, if dual-stack.
fn v6(v4: &str) -> Option<String> {
    let (address, length) = v4.split_once('/').unwrap_or((v4, "32"));
    let bits = address.parse::<Ipv4Addr>().ok()?.to_bits();
    let v6 = Ipv6Addr::from_bits((0xfd00 << 112) | u128::from(bits));
    let length = length.parse::<u8>().ok()? + 96;
    let text = format!("{v6}/{length}");
    let text = text.strip_suffix("/128").unwrap_or(&text);
    is_dual_stack().then(|| text.to_owned())
}

/// Returns the URL of the API server.
pub(super) fn server() -> String {
    format!("https://{}:6443", CONTROL.address)
}

/// Returns the path of a key, certificate or kubeconfig of the control plane.
pub(super) fn pki(name: &str) -> PathBuf {
    Path::new(STATE).join("pki").join(name)
}

/// Returns the path of the administrator's kubeconfig.
pub(super) fn kubeconfig() -> PathBuf {
    pki("admin.kubeconfig")
}

/// Returns the cgroup2 folder of the whole cluster: killing it ends every process of the cluster.
pub(super) fn cgroup() -> Result<PathBuf> {
    Ok(Path::new(&cgroup2_root()?).join("portolan-cluster"))
}

/// Returns where this machine's cgroup2 hierarchy is mounted.
pub(super) fn cgroup2_root() -> Result<String> {
    let mounts = mounts("cgroup2").unwrap_or_default();
    let root = mounts.lines().next().context(
        "no cgroup2 hierarchy is mounted; mount one (mount -t cgroup2 none /sys/fs/cgroup/unified)",
    )?;
    Ok(root.to_owned())
}

/// Returns the folders in cgroup v1 hierarchies in which containerd leaves its containers' cgroups.
pub(super) fn cgroups_v1() -> Vec<PathBuf> {
    let mounts = mounts("cgroup").unwrap_or_default();
    let roots = mounts.lines().map(Path::new);
    roots.map(|root| root.join("k8s.io")).collect()
}

/// Returns the mount points of file systems of this type; fails if there is none.
fn mounts(kind: &str) -> Result<String> {
    let words = format!("--noheadings --list --output TARGET --types {kind}");
    command::output(&mut command::of("findmnt", &words), "list mounts")
}

/// Builds the namespaces. `joins_pods`: the nodes get routes to pods, as the control plane has.
pub(super) fn build_network(joins_pods: bool) -> Result<()> {
    ip(&format!("netns add {SWITCH}"))?;
    ip(&format!("-n {SWITCH} link add switch type bridge"))?;
    ip(&format!("-n {SWITCH} link set switch up"))?;
    for place in places() {
        plug(&place)?;
    }
    for place in places().filter(|place| joins_pods || *place == CONTROL) {
        for node in NODES.iter().filter(|node| node.place != place) {
            let (netns, pods, via) = (place.netns(), node.pods, node.place.address);
            ip(&format!("-n {netns} route add {pods} via {via}"))?;
            if let (Some(pods), Some(via)) = (v6(pods), v6(via)) {
                ip(&format!("-n {netns} route add {pods} via {via}"))?;
            }
        }
    }
    for node in &NODES {
        let (netns, gateway) = (node.place.netns(), CONTROL.address);
        // Packets to unknown addresses need a route. Their gateway does not forward them.
        ip(&format!("-n {netns} route add default via {gateway}"))?;
        if let Some(gateway) = v6(gateway) {
            ip(&format!("-6 -n {netns} route add default via {gateway}"))?;
        }
        // kubeadm requires these on a node. A kernel without bridge filtering lacks the last two.
        for setting in [
            "net/ipv4/ip_forward",
            "net/ipv6/conf/all/forwarding",
            "net/bridge/bridge-nf-call-iptables",
            "net/bridge/bridge-nf-call-ip6tables",
        ] {
            let set = format!("test ! -e /proc/sys/{setting} || echo 1 > /proc/sys/{setting}");
            let net = format!("--net=/run/netns/{netns}");
            run(Command::new("nsenter").args([&net, "sh", "-c", &set]))?;
        }
    }
    Ok(())
}

fn plug(place: &Namespace) -> Result<()> {
    let (netns, name, address) = (place.netns(), place.name, place.address);
    ip(&format!("netns add {netns}"))?;
    ip(&format!("-n {netns} link set lo up"))?;
    ip(&format!(
        "-n {SWITCH} link add {name} type veth peer name eth0 netns {netns}"
    ))?;
    ip(&format!("-n {SWITCH} link set {name} master switch up"))?;
    let address = format!("{address}/24");
    ip(&format!("-n {netns} address add {address} dev eth0"))?;
    if let Some(address) = v6(&address) {
        ip(&format!("-n {netns} address add {address} dev eth0 nodad"))?;
    }
    ip(&format!("-n {netns} link set eth0 up"))
}

/// Removes the cluster's network namespaces that exist.
pub(super) fn remove_network() -> Result<()> {
    let names = places().map(|place| place.netns());
    for name in names.chain([SWITCH.to_owned()]) {
        if Path::new("/run/netns").join(&name).exists() {
            ip(&format!("netns delete {name}"))?;
        }
    }
    Ok(())
}

pub(super) fn has_network() -> bool {
    Path::new("/run/netns").join(SWITCH).exists()
}

pub(super) fn ip(words: &str) -> Result<()> {
    run(&mut command::of("ip", words))
        .map(drop)
        .context("set up the cluster's network")
}
