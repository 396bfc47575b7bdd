// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask cluster`: three real nodes and a control plane on this machine, in network
//! namespaces, with a selectable proxy. All its processes are in one cgroup and all its files in
//! two folders, by which `down` finds them.

mod cni;
mod control;
mod daemon;
pub(crate) mod gateway;
mod images;
mod layout;
mod network;
mod node;
mod pki;
mod proxy;
mod tools;

use std::{
    path::{Path, PathBuf},
    process::Command,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

use self::{
    cni::Cni,
    layout::{NODES, RUN, STATE},
    proxy::{Proxy, Serving},
    tools::Tools,
};
use crate::{command, fs};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Build the cluster, or start the parts that do not run; with another proxy, replace the
    /// present one
    Up {
        /// The proxy to install
        #[arg(long, value_enum, default_value_t = Proxy::Portolan)]
        proxy: Proxy,
        /// portolan's setting socketBalancing
        #[arg(long, value_parser = ["all", "host"], default_value = "all")]
        socket_balancing: String,
        /// The pod network [default: the present cluster's, else bridge]
        #[arg(long, value_enum)]
        cni: Option<Cni>,
    },
    /// Stop everything and remove it
    Down,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    match &arguments.action {
        Action::Up {
            proxy,
            socket_balancing,
            cni,
        } => up(*proxy, socket_balancing, *cni),
        Action::Down => down(),
    }
}

/// Prints a line for each step of `cluster up`: the time so far, and the step's usual duration.
struct Steps(Instant);

impl Steps {
    fn run<T>(&self, what: &str, usual: &str, step: impl FnOnce() -> Result<T>) -> Result<T> {
        eprintln!(
            "cluster [{:6.1} s] {what} (usually {usual})",
            self.0.elapsed().as_secs_f64()
        );
        step().with_context(|| what.to_owned())
    }
}

fn up(proxy: Proxy, balancing: &str, cni: Option<Cni>) -> Result<()> {
    let steps = Steps(Instant::now());
    let cni = cni::choose(cni, network::exists())?;
    let tools = steps.run("programs", "0 s, the first time 15 min", Tools::find)?;
    let tests = steps.run("images", "0 s, the first time 1 min", || {
        images::of_tests(&tools)
    })?;
    steps.run("namespaces, keys", "1 s", || {
        for place in layout::places() {
            fs::create_dir_all(place.cgroup()?)?;
        }
        if !network::exists() {
            network::build(cni.needs_routes())?;
        }
        pki::build()
    })?;
    steps.run("control plane", "8 s", || control::start(&tools))?;
    steps.run("container runtimes", "3 s, the first time 40 s", || {
        for node in &NODES {
            node::start_runtime(&tools, node)?;
            node::import(&tools, node, &tests)?;
        }
        Ok(())
    })?;
    steps.run("nodes", "10 s", || {
        for node in &NODES {
            node::start_kubelet(&tools, node)?;
        }
        cni::start(&tools, cni)?;
        node::wait_ready(&tools)?;
        control::apply(&tools, &control::dns_objects())
    })?;
    steps.run("proxy", "10 s, portolan's image 2 min", || {
        proxy::install(&tools, &Serving::new(proxy, balancing))
    })?;
    eprintln!(
        "cluster [{:6.1} s] ready; kubectl: {:?}",
        steps.0.elapsed().as_secs_f64(),
        control::kubectl_command(&tools)
    );
    Ok(())
}

/// Returns the paths of the cluster's programs; fails if there is no cluster.
fn standing() -> Result<Tools> {
    ensure!(
        layout::kubeconfig().exists(),
        "there is no cluster; build one with `cargo xtask cluster up`"
    );
    Tools::find()
}

/// Returns the folder with Kubernetes' e2e tests and their runner.
pub(crate) fn e2e_programs() -> Result<PathBuf> {
    Tools::e2e()
}

/// Returns a command that runs `program` in the control plane's network, and the name of the
/// cluster's pod network and current proxy.
pub(crate) fn for_tests(program: &Path) -> Result<(Command, String)> {
    standing()?;
    let name = format!("{}-{}", cni::current(), proxy::current());
    Ok((control::beside(program), name))
}

/// Returns the flags by which Kubernetes' e2e tests find the cluster.
pub(crate) fn test_flags(programs: &Path) -> [String; 3] {
    [
        format!("--num-nodes={}", NODES.len()),
        format!("--kubeconfig={}", layout::kubeconfig().display()),
        format!("--kubectl-path={}", programs.join("kubectl").display()),
    ]
}

fn down() -> Result<()> {
    let cgroup = layout::cgroup()?;
    if cgroup.exists() {
        // This cgroup contains all processes of the cluster, and no others.
        fs::write(cgroup.join("cgroup.kill"), "1")?;
        let deadline = Instant::now() + Duration::from_secs(30);
        while fs::read_to_string(cgroup.join("cgroup.events"))?.contains("populated 1") {
            if Instant::now() > deadline {
                bail!("the processes in {} do not end", cgroup.display());
            }
            sleep(Duration::from_millis(100));
        }
        remove_cgroups(&cgroup)?;
    }
    for folder in layout::cgroups_v1()? {
        // Another container runtime may use the same folder, which then cannot be removed.
        _ = remove_cgroups(&folder);
    }
    network::remove()?;
    for folder in [STATE, RUN] {
        remove_folder(Path::new(folder))?;
    }
    Ok(())
}

fn remove_cgroups(folder: &Path) -> Result<()> {
    for path in fs::children(folder)?.iter().filter(|path| path.is_dir()) {
        // An error can be ignored: removing the parent will fail as well.
        _ = remove_cgroups(path);
    }
    std::fs::remove_dir(folder).with_context(|| format!("remove {}", folder.display()))
}

/// Removes a folder of the cluster. Mounts in it have ended with the nodes' mount namespaces.
fn remove_folder(folder: &Path) -> Result<()> {
    if !folder.exists() {
        return Ok(());
    }
    let mut command = command::of("rm", "--recursive --force --one-file-system");
    daemon::run(command.arg(folder)).map(drop)
}
