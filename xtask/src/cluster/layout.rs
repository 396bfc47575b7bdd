// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Names, addresses and folders of the cluster: `up` uses them to build the cluster, and `down` to
//! find it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

/// The folder of all files that are kept, including logs.
pub(super) const STATE: &str = "/var/lib/portolan-cluster";
/// The folder of sockets, and of the nodes' mount points.
pub(super) const RUN: &str = "/run/portolan-cluster";

pub(super) const CONTROL: Namespace = Namespace {
    name: "control",
    address: "192.168.77.10",
};
/// Three nodes, each in its own zone: some of upstream's tests need as many.
pub(super) const NODES: [Node; 3] = [
    Node {
        place: Namespace {
            name: "node-a",
            address: "192.168.77.11",
        },
        pods: "10.244.1.0/24",
        zone: "zone-a",
    },
    Node {
        place: Namespace {
            name: "node-b",
            address: "192.168.77.12",
        },
        pods: "10.244.2.0/24",
        zone: "zone-b",
    },
    Node {
        place: Namespace {
            name: "node-c",
            address: "192.168.77.13",
        },
        pods: "10.244.3.0/24",
        zone: "zone-c",
    },
];
/// Network namespace of the bridge that joins all other namespaces.
pub(super) const SWITCH: &str = "portolan-switch";

pub(super) const CLUSTER_CIDR: &str = "10.244.0.0/16";
pub(super) const SERVICE_CIDR: &str = "10.96.0.0/16";
/// The first address of the service range, which Kubernetes gives to its own service.
pub(super) const API_SERVICE: &str = "10.96.0.1";
pub(super) const DNS: &str = "10.96.0.10";
pub(super) const DOMAIN: &str = "cluster.local";

/// A network namespace with an address on the common bridge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Namespace {
    pub(super) name: &'static str,
    pub(super) address: &'static str,
}

/// A node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Node {
    pub(super) place: Namespace,
    /// The range of its pods' addresses.
    pub(super) pods: &'static str,
    pub(super) zone: &'static str,
}

/// Returns the control plane and the nodes.
pub(super) fn places() -> impl Iterator<Item = Namespace> {
    std::iter::once(CONTROL).chain(NODES.iter().map(|node| node.place))
}

impl Namespace {
    pub(super) fn netns(&self) -> String {
        format!("portolan-{}", self.name)
    }
    /// The folder of the files of this place.
    pub(super) fn folder(&self) -> PathBuf {
        Path::new(STATE).join(self.name)
    }
    /// The cgroup2 folder that contains all processes of this place.
    pub(super) fn cgroup(&self) -> Result<PathBuf> {
        Ok(cgroup()?.join(self.name))
    }
}

/// URL of the API server.
pub(super) fn server() -> String {
    format!("https://{}:6443", CONTROL.address)
}

/// A file of the control plane: keys, certificates, kubeconfigs.
pub(super) fn pki(name: &str) -> PathBuf {
    Path::new(STATE).join("pki").join(name)
}

/// An administrator's kubeconfig.
pub(super) fn kubeconfig() -> PathBuf {
    pki("admin.kubeconfig")
}

/// The cgroup2 folder of the complete cluster: killing it ends every process.
pub(super) fn cgroup() -> Result<PathBuf> {
    Ok(cgroup2_root()?.join("portolan-cluster"))
}

/// Where this machine's cgroup2 hierarchy is mounted.
pub(super) fn cgroup2_root() -> Result<PathBuf> {
    let mounts = mounts()?;
    let root = roots(&mounts, "cgroup2").next().context(
        "no cgroup2 hierarchy is mounted; mount one (mount -t cgroup2 none /sys/fs/cgroup/unified)",
    )?;
    Ok(root.into())
}

/// Returns the folders in which the container runtime leaves cgroups of containers, in the
/// hierarchies of cgroup v1.
pub(super) fn cgroups_v1() -> Result<Vec<PathBuf>> {
    let mounts = mounts()?;
    let roots = roots(&mounts, "cgroup");
    Ok(roots.map(|root| Path::new(root).join("k8s.io")).collect())
}

fn mounts() -> Result<String> {
    fs::read_to_string("/proc/self/mounts").context("read /proc/self/mounts")
}

/// Returns where file systems of a kind are mounted.
fn roots<'a>(mounts: &'a str, kind: &'a str) -> impl Iterator<Item = &'a str> {
    mounts.lines().filter_map(move |line| {
        let mut fields = line.split(' ').skip(1);
        let place = fields.next()?;
        (fields.next()? == kind).then_some(place)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cgroup_hierarchies_are_found_among_the_mounts() {
        let mounts = "proc /proc proc rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let found = |kind| roots(mounts, kind).collect::<Vec<_>>();
        assert_eq!(found("cgroup2"), ["/sys/fs/cgroup/unified"]);
        assert_eq!(found("cgroup"), ["/sys/fs/cgroup/cpu"]);
        assert!(found("tmpfs").is_empty());
    }
}
