// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask cluster`: three real nodes and a control plane on this machine, in network
//! namespaces, with a selectable proxy. All its processes are in one cgroup and all its files in
//! two folders, by which `down` finds them.

mod control;
mod images;
mod layout;
mod node;
pub(crate) mod pki;
mod proxy;
pub(crate) mod suites;

use std::{
    path::{Path, PathBuf},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use self::{
    layout::{CONTROL, NODES, RUN, STATE},
    node::Cni,
    proxy::Proxy,
};
use crate::{
    command, fs, host,
    setup::{self, go},
};

#[derive(clap::Subcommand)]
pub(crate) enum Action {
    /// Build the cluster, or start the parts that do not run; with another proxy, replace the
    /// present one
    Up {
        /// The proxy to install
        #[arg(long, value_enum, default_value_t = Proxy::Portolan)]
        proxy: Proxy,
        /// The pod network [default: the present cluster's, else bridge]
        #[arg(long, value_enum)]
        cni: Option<Cni>,
        /// Give nodes, pods and services addresses of IPv6, too, with the pod network bridge
        #[arg(long, conflicts_with = "cni")]
        dual_stack: bool,
    },
    /// Stop everything and remove it
    Down,
}

pub(crate) fn run(action: &Action) -> Result<()> {
    match action {
        Action::Up {
            proxy,
            cni,
            dual_stack,
        } => up(*proxy, *cni, *dual_stack),
        Action::Down => down(),
    }
}

/// Runs a step of `cluster up`, of which `what` says what it is and how long it usually takes.
fn step<T>(what: &str, run: impl FnOnce() -> Result<T>) -> Result<T> {
    setup::step("cluster", what);
    run().with_context(|| what.to_owned())
}

fn up(proxy: Proxy, cni: Option<Cni>, dual_stack: bool) -> Result<()> {
    if !layout::has_network() {
        fs::write(layout::dual_stack(), dual_stack.to_string())?;
    }
    ensure!(
        layout::is_dual_stack() || !dual_stack,
        "this cluster has IPv4 only, and it stays so: `cargo xtask cluster down` first"
    );
    let cni = node::choose_cni(cni, layout::has_network())?;
    let tools = step("programs (0 s, the first time 15 min)", Tools::find)?;
    let tests = step("images (0 s, the first time 1 min)", || {
        images::of_tests(&tools)
    })?;
    step("namespaces, keys (1 s)", || {
        for place in layout::places() {
            fs::create_dir_all(place.cgroup()?)?;
        }
        if !layout::has_network() {
            layout::build_network(cni == Cni::Bridge)?;
        }
        pki::build()
    })?;
    step("control plane (8 s)", || control::start(&tools))?;
    step("container runtimes (3 s, the first time 40 s)", || {
        for node in &NODES {
            node::start_runtime(&tools, node)?;
            node::import(&tools, node, &tests)?;
        }
        Ok(())
    })?;
    step("nodes (10 s)", || {
        for node in &NODES {
            node::start_kubelet(&tools, node)?;
        }
        node::start_cni(&tools, cni)?;
        let ready = "wait --for=condition=Ready node --all --timeout=90s";
        control::kubectl(&tools, ready)?;
        control::apply(&tools, include_str!("../../cluster/dns.yaml"))
    })?;
    step("proxy (10 s, portolan's image 2 min)", || {
        proxy::install(&tools, proxy)
    })?;
    let kubectl = control::kubectl_command(&tools);
    setup::step("cluster", &format!("ready; kubectl: {kubectl:?}"));
    Ok(())
}

/// Returns the name of a command line's value.
fn name(value: &impl clap::ValueEnum) -> String {
    let value = value.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Returns the choice that [`note`] has written into this file.
fn noted<T: clap::ValueEnum>(file: &str) -> Option<T> {
    let text = fs::read_to_string(CONTROL.folder().join(file)).ok()?;
    T::from_str(text.trim(), false).ok()
}

fn note(file: &str, choice: &impl clap::ValueEnum) -> Result<()> {
    fs::write(CONTROL.folder().join(file), name(choice))
}

/// Returns the paths of the cluster's programs; fails if there is no cluster.
fn standing() -> Result<Tools> {
    ensure!(
        layout::kubeconfig().exists(),
        "there is no cluster; build one with `cargo xtask cluster up`"
    );
    Tools::find()
}

fn down() -> Result<()> {
    let cgroup = layout::cgroup()?;
    if cgroup.exists() {
        // This cgroup contains all processes of the cluster, and no others.
        fs::write(cgroup.join("cgroup.kill"), "1")?;
        let deadline = Instant::now() + Duration::from_secs(30);
        while fs::read_to_string(cgroup.join("cgroup.events"))?.contains("populated 1") {
            let may_wait = Instant::now() < deadline;
            ensure!(may_wait, "the processes in {cgroup:?} do not end");
            sleep(Duration::from_millis(100));
        }
        remove_cgroups(&cgroup)?;
    }
    for folder in layout::cgroups_v1() {
        // Another container runtime may use the same folder, which then cannot be removed.
        _ = remove_cgroups(&folder);
    }
    layout::remove_network()?;
    // Mounts in the folders have ended with the nodes' mount namespaces.
    let mut command = command::of("rm", "--recursive --force --one-file-system");
    control::run(command.args([STATE, RUN])).map(drop)
}

fn remove_cgroups(folder: &Path) -> Result<()> {
    for path in fs::children(folder)?.iter().filter(|path| path.is_dir()) {
        // An error can be ignored: removing the parent will fail as well.
        _ = remove_cgroups(path);
    }
    std::fs::remove_dir(folder).with_context(|| format!("remove {}", folder.display()))
}

const NODE_PROGRAMS: &str =
    "kube-controller-manager kube-scheduler kubelet kube-proxy agnhost regression-issue-74839";

/// Programs of nodes and xtask. A CNI plugin has its full path: iproute2 also has a `bridge`.
const PACKAGES: &str = "runc /usr/lib/cni/bridge=containernetworking-plugins debootstrap \
    nsenter=util-linux iptables nft=nftables conntrack";

/// The folders with the programs that were built.
struct Tools {
    kubernetes: PathBuf,
    containerd: PathBuf,
    coredns: PathBuf,
}

impl Tools {
    /// Installs and builds the programs that are missing.
    fn find() -> Result<Self> {
        ensure!(
            host::is_root(),
            "a cluster of containers in network namespaces needs root: run this as root"
        );
        setup::tools(PACKAGES)?;
        let programs = format!("{} {NODE_PROGRAMS}", go::CONTROL_PLANE);
        Ok(Self {
            kubernetes: go::programs("kubernetes", &programs)?,
            containerd: go::programs("containerd", "containerd containerd-shim-runc-v2 ctr")?,
            coredns: go::program("coredns", "coredns")?,
        })
    }
    fn kubernetes(&self, name: &str) -> String {
        self.kubernetes.join(name).display().to_string()
    }
    fn containerd(&self, name: &str) -> String {
        self.containerd.join(name).display().to_string()
    }
    fn coredns(&self) -> String {
        self.coredns.display().to_string()
    }
    /// Returns the PATH for programs on a node: containerd searches it for its shim and for runc.
    fn path(&self) -> String {
        let (one, other) = (self.containerd.display(), self.kubernetes.display());
        format!("{one}:{other}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    }
}
