// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Starts a node: its mounts and host name, its container runtime with the images, its kubelet, and
//! its pod network: the plugin bridge with routes of this cluster's own, flannel, or kube-router
//! with its network policies. Called by `cluster up`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde_json::json;

use super::{
    Tools,
    control::{self, HOLDER, inside, kubectl, run, wait},
    images::{Archive, PAUSE},
    layout::{self, CLUSTER_CIDR, NODES, Node, RUN, SERVICE_CIDR, families, kubeconfig, pki},
    name, note, noted,
};
use crate::{
    fs,
    setup::{self, go},
};

/// A shell script whose process keeps a node's namespaces. It sets the host name and mounts a BPF
/// file system and a cgroup2 hierarchy whose root is the node's cgroup. The container runtime
/// creates its cgroups below this root, and the DaemonSet attaches the socket hooks to it.
const HOLD: &str = include_str!("../../cluster/hold.sh");

/// Returns where a node's own cgroup2 hierarchy is mounted: the same path in each node's mounts.
fn cgroup_mount() -> PathBuf {
    Path::new(RUN).join("cgroup")
}

/// Returns the folder of a node's sockets and mount points.
fn run_folder(node: &Node) -> String {
    format!("{RUN}/{}", node.place.name)
}

/// Starts the holder of a node's namespaces and the container runtime of the node.
pub(super) fn start_runtime(tools: &Tools, node: &Node) -> Result<()> {
    let (place, folder) = (&node.place, node.place.folder());
    fs::create_dir_all(cgroup_mount())?;
    let cgroups = layout::cgroup2_root()?;
    let mount = cgroup_mount().display().to_string();
    let namespaces = ["unshare", "--mount", "--uts", "--cgroup"];
    let script = ["sh", "-c", HOLD, HOLDER, place.name, &cgroups, &mount];
    control::start_daemon(place, HOLDER, namespaces.iter().chain(&script))?;
    wait("the node's mounts", place, HOLDER, || {
        let test = ["test", "-e", &format!("{mount}/cgroup.procs")];
        inside(place).is_ok_and(|mut command| run(command.args(test)).is_ok())
    })?;
    fs::create_dir_all(folder.join("cni"))?;
    let config = folder.join("containerd.toml");
    let text = format!(
        include_str!("../../cluster/containerd.toml"),
        folder = folder.display(),
        run = run_folder(node),
        pause = PAUSE,
    );
    fs::write(&config, text)?;
    let path = format!("PATH={}", tools.path());
    let (program, config) = (tools.containerd("containerd"), config.display().to_string());
    let words = ["env", &path, &program, "--config", &config];
    control::start_daemon(place, "containerd", words)?;
    let answers = || ctr(tools, node, &["version"]).is_ok();
    wait("the container runtime", place, "containerd", answers)
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
        .arg("--address")
        .arg(format!("{}/containerd.sock", run_folder(node)))
        .args(["--namespace", "k8s.io"])
        .args(arguments))
}

/// Starts the kubelet of a node.
pub(super) fn start_kubelet(tools: &Tools, node: &Node) -> Result<()> {
    let folder = node.place.folder();
    let config = folder.join("kubelet.yaml");
    let text = format!(
        include_str!("../../cluster/kubelet.yaml"),
        folder = folder.display(),
        run = run_folder(node),
        pki = pki("").display(),
        address = node.place.address,
    );
    fs::write(&config, text)?;
    // The nodes have no DNS resolver, so names outside of the cluster cannot be resolved.
    fs::write(folder.join("resolv.conf"), "")?;
    let (name, zone) = (node.place.name, node.zone);
    let addresses = families(node.place.address);
    let kubeconfig = pki(&format!("{name}.kubeconfig"));
    let command = format!(
        "env PATH={} {} --config={} --kubeconfig={} --root-dir={} --cert-dir={} \
         --hostname-override={name} --node-ip={addresses} --node-labels=topology.kubernetes.io/zone={zone}",
        tools.path(),
        tools.kubernetes("kubelet"),
        config.display(),
        kubeconfig.display(),
        folder.join("kubelet").display(),
        folder.join("kubelet-pki").display(),
    );
    control::start_daemon(&node.place, "kubelet", command.split_whitespace())
}

/// Who joins the nodes' pods.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Cni {
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

/// Returns the cluster's pod network.
pub(super) fn current_cni() -> Cni {
    noted("cni").unwrap_or(Cni::Bridge)
}

/// Returns the pod network to build: `wanted`, or without it the present one. Writes it down. Fails
/// if there is a cluster with another one.
pub(super) fn choose_cni(wanted: Option<Cni>, stands: bool) -> Result<Cni> {
    let present = if stands { current_cni() } else { Cni::Bridge };
    let cni = wanted.unwrap_or(present);
    ensure!(
        !stands || cni == present,
        "this cluster's pod network is {}, and it stays as long as the cluster: `cargo xtask cluster down` first",
        name(&present)
    );
    note("cni", &cni)?;
    Ok(cni)
}

/// Gives each node its range of pod addresses, starts the pod network's daemons and writes the
/// container runtime's configurations. The nodes must be known to the API server.
pub(super) fn start_cni(tools: &Tools, cni: Cni) -> Result<()> {
    for node in &NODES {
        let name = node.place.name;
        let known = format!("wait --for=create node/{name} --timeout=90s");
        kubectl(tools, &known)?;
        let ranges = families(node.pods);
        let ranges: Vec<_> = ranges.split(',').collect();
        let patch = json!({"spec": {"podCIDR": node.pods, "podCIDRs": ranges}});
        kubectl(tools, &format!("patch node {name} --patch {patch}"))?;
    }
    // kube-router masquerades packets to nodes whose ranges it did not find at its start.
    for node in &NODES {
        match cni {
            Cni::Bridge => configure(node, "cni0", 0)?,
            Cni::KubeRouter => {
                configure(node, "kube-bridge", 0)?;
                start_kube_router(tools, node)?;
            }
            _ => start_flannel(tools, node, cni)?,
        }
    }
    Ok(())
}

/// Starts flannel with what its manifest says. The plugin `flannel` of that manifest would call the
/// plugin `bridge` with values from flannel's file; `configure` writes them.
fn start_flannel(tools: &Tools, node: &Node, cni: Cni) -> Result<()> {
    let folder = node.place.folder();
    let (network, lease) = (folder.join("net-conf.json"), folder.join("subnet.env"));
    let is_direct = cni == Cni::FlannelHostGw;
    let backend = if is_direct { "host-gw" } else { "vxlan" };
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
        go::program("flannel", "flanneld")?.display(),
        kubeconfig().display(),
        network.display(),
        lease.display(),
    );
    control::start_daemon(&node.place, "flanneld", line.split_whitespace())?;
    let is_there = || lease.exists();
    wait("flannel's lease", &node.place, "flanneld", is_there)?;
    let text = fs::read_to_string(&lease)?;
    let mut lines = text.lines();
    let mtu = lines.find_map(|line| line.strip_prefix("FLANNEL_MTU=")?.trim().parse().ok());
    let mtu: u32 = mtu.context("flannel's lease has no FLANNEL_MTU")?;
    configure(node, "cni0", mtu)
}

/// Starts kube-router without its service proxy, and without tunnels: all nodes are on one segment.
fn start_kube_router(tools: &Tools, node: &Node) -> Result<()> {
    setup::tools("ipset")?;
    let line = format!(
        "env PATH={} KUBE_ROUTER_CNI_CONF_FILE={} {} --kubeconfig={} --hostname-override={} \
         --run-service-proxy=false --enable-overlay=false --service-cluster-ip-range={SERVICE_CIDR}",
        tools.path(),
        file(node).display(),
        go::program("kube-router", "kube-router")?.display(),
        kubeconfig().display(),
        node.place.name,
    );
    control::start_daemon(&node.place, "kube-router", line.split_whitespace())
}

fn file(node: &Node) -> PathBuf {
    node.place.folder().join("cni/10-cluster.conflist")
}

/// Writes the configuration that the container runtime reads: the plugin bridge. Without one a node
/// is not ready. kube-router and flannel masquerade themselves. An `mtu` of 0 is the default.
fn configure(node: &Node, name: &str, mtu: u32) -> Result<()> {
    let ranges = families(node.pods);
    let ranges = ranges.split(',').map(|range| json!([{"subnet": range}]));
    let bridge = json!({
        "type": "bridge", "bridge": name, "isGateway": true, "isDefaultGateway": true, "hairpinMode": true,
        "ipam": {
            "type": "host-local", "ranges": ranges.collect::<Vec<_>>(),
            "dataDir": node.place.folder().join("cni-addresses"),
        },
        "mtu": mtu,
    });
    let ports = json!({"type": "portmap", "capabilities": {"portMappings": true}, "snat": true});
    let conflist = json!({"cniVersion": "1.0.0", "name": "cluster", "plugins": [bridge, ports]});
    fs::write(file(node), conflist.to_string())
}
