// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Starts a node: its mounts and host name, its container runtime with the images, its kubelet.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use serde_json::json;

use super::{
    control::kubectl,
    daemon::{Daemon, HOLDER, inside, run, wait},
    images::{Archive, PAUSE},
    layout::{self, DNS, DOMAIN, NODES, Node, RUN, pki},
    tools::{CNI, Tools},
};

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
        self.run_folder()
            .join("containerd.sock")
            .display()
            .to_string()
    }
}

/// Starts the holder of a node's namespaces and the container runtime of the node.
pub(super) fn start_runtime(tools: &Tools, node: &Node) -> Result<()> {
    let (place, folder) = (&node.place, node.place.folder());
    fs::create_dir_all(cgroup_mount()).context("make the place of the cgroups")?;
    Daemon {
        place,
        name: HOLDER,
        command: [
            "unshare", "--mount", "--uts", "--cgroup", "sh", "-c", HOLD, HOLDER, place.name,
        ]
        .map(str::to_owned)
        .into_iter()
        .chain([
            layout::cgroup2_root()?.display().to_string(),
            cgroup_mount().display().to_string(),
        ])
        .collect(),
    }
    .start()?;
    wait("the node's mounts", PATIENCE, place, HOLDER, || {
        inside(place).is_ok_and(|mut command| {
            let mounted = run(command
                .args(["test", "-e"])
                .arg(cgroup_mount().join("cgroup.procs")));
            mounted.is_ok()
        })
    })?;
    write(&folder.join("cni/10-bridge.conflist"), &bridge(node))?;
    let config = folder.join("containerd.toml");
    write(&config, &containerd_config(node))?;
    Daemon {
        place,
        name: "containerd",
        command: vec![
            "env".into(),
            format!("PATH={}", tools.path()),
            tools.containerd("containerd"),
            "--config".into(),
            config.display().to_string(),
        ],
    }
    .start()?;
    wait(
        "the container runtime",
        PATIENCE,
        place,
        "containerd",
        || ctr(tools, node, &["version"]).is_ok(),
    )
}

/// Imports an archive's images into a node's container runtime, unless the node has them.
pub(super) fn import(tools: &Tools, node: &Node, archive: &Archive) -> Result<()> {
    let known = ctr(tools, node, &["images", "ls"])?;
    let marker = node
        .place
        .folder()
        .join(format!("{}.imported", archive.name));
    let version = archive.version()?;
    let whole = archive
        .images
        .iter()
        .all(|image| known.contains(image.as_str()));
    if whole && fs::read_to_string(&marker).is_ok_and(|imported| imported == version) {
        return Ok(());
    }
    let file = archive.file.display().to_string();
    ctr(tools, node, &["images", "import", "--local", &file])?;
    write(&marker, &version)
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
    write(&config, &kubelet_config(node))?;
    // The nodes have no DNS resolver, so names outside of the cluster cannot be resolved.
    write(&folder.join("resolv.conf"), "")?;
    let mut command = vec![
        "env".to_owned(),
        format!("PATH={}", tools.path()),
        tools.kubernetes("kubelet"),
    ];
    let name = node.place.name;
    command.extend([
        format!("--config={}", config.display()),
        format!(
            "--kubeconfig={}",
            pki(&format!("{name}.kubeconfig")).display()
        ),
        format!("--root-dir={}", folder.join("kubelet").display()),
        format!("--cert-dir={}", folder.join("kubelet-pki").display()),
        format!("--hostname-override={name}"),
        format!("--node-ip={}", node.place.address),
        format!("--node-labels=topology.kubernetes.io/zone={}", node.zone),
    ]);
    Daemon {
        place: &node.place,
        name: "kubelet",
        command,
    }
    .start()
}

/// Waits until every node is Ready in the API.
pub(super) fn wait_ready(tools: &Tools) -> Result<()> {
    for node in &NODES {
        let query = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
        wait(
            &format!("{} to be ready", node.place.name),
            PATIENCE,
            &node.place,
            "kubelet",
            || {
                kubectl(tools, &["get", "node", node.place.name, "-o", query])
                    .is_ok_and(|status| status == "True")
            },
        )?;
    }
    Ok(())
}

fn bridge(node: &Node) -> String {
    json!({
        "cniVersion": "1.0.0", "name": "bridge",
        "plugins": [
            {
                "type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
                "ipam": {
                    "type": "host-local", "ranges": [[{"subnet": node.pods}]], "routes": [{"dst": "0.0.0.0/0"}],
                    "dataDir": node.place.folder().join("cni-addresses"),
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}, "snat": true},
        ],
    })
    .to_string()
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

fn write(file: &Path, content: &str) -> Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    }
    fs::write(file, content).with_context(|| format!("write {}", file.display()))
}
