// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Starts a node: its mounts and host name, its container runtime with the images, its kubelet.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Result;
use serde_json::json;

use super::{
    control::kubectl,
    daemon::{self, HOLDER, inside, run, wait},
    images::{Archive, PAUSE},
    layout::{self, DNS, DOMAIN, NODES, Node, RUN, pki},
    tools::{CNI, Tools},
};
use crate::fs;

const PATIENCE: Duration = Duration::from_secs(90);

/// A shell script whose process keeps a node's namespaces. It sets the host name and mounts a BPF
/// file system and a cgroup2 hierarchy whose root is the node's cgroup. The container runtime
/// creates its cgroups below this root, and the DaemonSet attaches the socket hooks to it.
const HOLD: &str = "set -e
mount --make-rshared /
hostname \"$1\"
mount -t bpf bpffs /sys/fs/bpf
umount \"$2\"
mount -t cgroup2 cgroup2 \"$2\"
mkdir -p \"$3\"
mount --bind \"$2\" \"$3\"
exec sleep infinity";

/// Returns where a node's own cgroup2 hierarchy is mounted: the same path in each node's mounts.
pub(super) fn cgroup_mount() -> PathBuf {
    Path::new(RUN).join("cgroup")
}

impl Node {
    fn run_folder(&self) -> PathBuf {
        Path::new(RUN).join(self.place.name)
    }
    fn socket(&self) -> String {
        format!("{}/containerd.sock", self.run_folder().display())
    }
}

/// Starts the holder of a node's namespaces and the container runtime of the node.
pub(super) fn start_runtime(tools: &Tools, node: &Node) -> Result<()> {
    let (place, folder) = (&node.place, node.place.folder());
    fs::create_dir_all(cgroup_mount())?;
    let (cgroups, mount) = (layout::cgroup2_root()?, cgroup_mount());
    let (cgroups, mount) = (cgroups.display().to_string(), mount.display().to_string());
    let namespaces = ["unshare", "--mount", "--uts", "--cgroup"];
    let script = ["sh", "-c", HOLD, HOLDER, place.name, &cgroups, &mount];
    daemon::start(place, HOLDER, namespaces.iter().chain(&script))?;
    wait("the node's mounts", PATIENCE, place, HOLDER, || {
        let file = cgroup_mount().join("cgroup.procs");
        let mut command = inside(place);
        let test = command
            .as_mut()
            .map(|command| command.args(["test", "-e"]).arg(file));
        test.is_ok_and(|test| run(test).is_ok())
    })?;
    fs::create_dir_all(folder.join("cni"))?;
    let config = folder.join("containerd.toml");
    fs::write(&config, containerd_config(node))?;
    let path = format!("PATH={}", tools.path());
    let (program, config) = (tools.containerd("containerd"), config.display().to_string());
    let words = ["env", &path, &program, "--config", &config];
    daemon::start(place, "containerd", words)?;
    let answers = || ctr(tools, node, &["version"]).is_ok();
    wait(
        "the container runtime",
        PATIENCE,
        place,
        "containerd",
        answers,
    )
}

/// Imports an archive's images into a node's container runtime, unless the node has them.
pub(super) fn import(tools: &Tools, node: &Node, archive: &Archive) -> Result<()> {
    let known = ctr(tools, node, &["images", "ls"])?;
    let marker = format!("{}.imported", archive.name);
    let marker = node.place.folder().join(marker);
    let version = archive.version()?;
    let mut images = archive.images.iter();
    let has_all = images.all(|image| known.contains(image.as_str()));
    if has_all && fs::read_to_string(&marker).is_ok_and(|imported| imported == version) {
        return Ok(());
    }
    let file = archive.file.display().to_string();
    ctr(tools, node, &["images", "import", "--local", &file])?;
    fs::write(&marker, &version)
}

pub(super) fn ctr(tools: &Tools, node: &Node, arguments: &[&str]) -> Result<String> {
    run(inside(&node.place)?
        .arg(tools.containerd("ctr"))
        .args(["--address", &node.socket(), "--namespace", "k8s.io"])
        .args(arguments))
}

/// Starts the kubelet of a node.
pub(super) fn start_kubelet(tools: &Tools, node: &Node) -> Result<()> {
    let folder = node.place.folder();
    let config = folder.join("kubelet.json");
    fs::write(&config, kubelet_config(node))?;
    // The nodes have no DNS resolver, so names outside of the cluster cannot be resolved.
    fs::write(folder.join("resolv.conf"), "")?;
    let (name, address, zone) = (node.place.name, node.place.address, node.zone);
    let kubeconfig = pki(&format!("{name}.kubeconfig"));
    let command = format!(
        "env PATH={} {} --config={} --kubeconfig={} --root-dir={} --cert-dir={} \
         --hostname-override={name} --node-ip={address} --node-labels=topology.kubernetes.io/zone={zone}",
        tools.path(),
        tools.kubernetes("kubelet"),
        config.display(),
        kubeconfig.display(),
        folder.join("kubelet").display(),
        folder.join("kubelet-pki").display(),
    );
    daemon::start(&node.place, "kubelet", command.split_whitespace())
}

/// Waits until every node is Ready in the API.
pub(super) fn wait_ready(tools: &Tools) -> Result<()> {
    for node in &NODES {
        let name = node.place.name;
        let query = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
        let get = format!("get node {name} -o {query}");
        let what = format!("{name} to be ready");
        let is_ready = || kubectl(tools, &get).is_ok_and(|status| status == "True");
        wait(&what, PATIENCE, &node.place, "kubelet", is_ready)?;
    }
    Ok(())
}

fn containerd_config(node: &Node) -> String {
    let (folder, run) = (node.place.folder(), node.run_folder());
    let (folder, run) = (folder.display(), run.display());
    format!(
        "version = 3
root = \"{folder}/containerd\"
state = \"{run}/containerd\"
[grpc]
address = \"{}\"
[plugins.'io.containerd.cri.v1.images']
snapshotter = \"overlayfs\"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = \"{PAUSE}\"
[plugins.'io.containerd.cri.v1.runtime']
# This machine may not allow a container a lower score than containerd's own.
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = [\"{CNI}\"]
conf_dir = \"{folder}/cni\"
[plugins.'io.containerd.cri.v1.runtime'.containerd]
default_runtime_name = \"runc\"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = \"io.containerd.runc.v2\"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
SystemdCgroup = false
",
        node.socket()
    )
}

fn kubelet_config(node: &Node) -> String {
    let folder = node.place.folder();
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": format!("unix://{}", node.socket()),
        "authentication": {
            "anonymous": {"enabled": false}, "webhook": {"enabled": true},
            "x509": {"clientCAFile": pki("ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "address": node.place.address,
        "cgroupDriver": "cgroupfs", "cgroupsPerQOS": false, "enforceNodeAllocatable": [],
        "failCgroupV1": false, "failSwapOn": false, "localStorageCapacityIsolation": false,
        "clusterDNS": [DNS], "clusterDomain": DOMAIN,
        "podLogsDir": folder.join("pods"), "resolvConf": folder.join("resolv.conf"),
        // The kubelet must not evict pods because a disk of this machine is full.
        "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%", "nodefs.inodesFree": "0%"},
        "imageGCHighThresholdPercent": 100,
        "maxPods": 110, "serializeImagePulls": false,
        "kubeAPIQPS": 100, "kubeAPIBurst": 200,
    })
    .to_string()
}
