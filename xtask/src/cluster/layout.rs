// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Names, addresses and folders of the cluster. `cluster up` builds the cluster with them, and
//! `cluster down` finds it by them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::fs;

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
pub(super) const DNS: &str = "10.96.0.10";
pub(super) const DOMAIN: &str = "cluster.local";

/// A network namespace (of a node or of the control plane) with an address on the common bridge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Namespace {
    pub(super) name: &'static str,
    pub(super) address: &'static str,
}

/// A Kubernetes node, made of namespaces on this machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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
    Ok(cgroup2_root()?.join("portolan-cluster"))
}

/// Returns where this machine's cgroup2 hierarchy is mounted.
pub(super) fn cgroup2_root() -> Result<PathBuf> {
    let mounts = mounts()?;
    let root = roots(&mounts, "cgroup2").next().context(
        "no cgroup2 hierarchy is mounted; mount one (mount -t cgroup2 none /sys/fs/cgroup/unified)",
    )?;
    Ok(root.into())
}

/// Returns the folders in cgroup v1 hierarchies in which containerd leaves its containers' cgroups.
pub(super) fn cgroups_v1() -> Result<Vec<PathBuf>> {
    let mounts = mounts()?;
    let roots = roots(&mounts, "cgroup");
    Ok(roots.map(|root| Path::new(root).join("k8s.io")).collect())
}

fn mounts() -> Result<String> {
    fs::read_to_string("/proc/self/mounts")
}

/// Returns the mount points of file systems of type `kind` in `mounts`, a text like /proc/mounts.
fn roots<'a>(mounts: &'a str, kind: &'a str) -> impl Iterator<Item = &'a str> {
    mounts.lines().filter_map(move |line| {
        let mut fields = line.split(' ').skip(1);
        let place = fields.next()?;
        (fields.next()? == kind).then_some(place)
    })
}
