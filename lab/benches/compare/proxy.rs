// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Starts the proxies on the served node, watches and ends them, and removes what they leave.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result};
use lab::{
    load::setup::{Setup, config},
    node::{
        agent::{Agent, Manifests, Options},
        http,
        options::METRICS,
        process::end_with_us,
        settings::{Forwarding, SocketBalancing},
    },
};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::{
    plan::{Cell, Proxy},
    world::World,
};

/// The range of the pods.
const CLUSTER_CIDR: &str = "10.40.0.0/16";
/// A proxy that runs; dropping it ends it.
pub(crate) struct Running<'a> {
    world: &'a World,
    setup: Setup,
    process: Process<'a>,
}

enum Process<'a> {
    None,
    Portolan(Agent<'a>),
    KubeProxy(Child, PathBuf),
}

/// Where the programs are.
pub(crate) struct Programs {
    pub(crate) portolan: PathBuf,
    pub(crate) kube_proxy: PathBuf,
    /// For their logs and settings.
    pub(crate) folder: PathBuf,
}

impl<'a> Running<'a> {
    pub(crate) fn start(
        world: &'a World,
        cell: &Cell,
        programs: &Programs,
        kubeconfig: &Path,
    ) -> Result<Self> {
        let process = match cell.proxy {
            Proxy::Direct => Process::None,
            Proxy::PortolanSocket | Proxy::PortolanPacket | Proxy::PortolanRedirect => {
                Process::Portolan(portolan(world, programs, kubeconfig, cell.proxy)?)
            }
            Proxy::Nftables | Proxy::NftablesFast | Proxy::Iptables | Proxy::IptablesFast => {
                let log = programs.folder.join("kube-proxy.log");
                let child = kube_proxy(world, cell.proxy, programs, kubeconfig, &log)?;
                Process::KubeProxy(child, log)
            }
        };
        Ok(Self {
            world,
            setup: cell.setup,
            process,
        })
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        match &self.process {
            Process::None => None,
            Process::Portolan(agent) => Some(agent.pid()),
            Process::KubeProxy(child, _) => Some(child.id()),
        }
    }

    /// The last lines that it wrote.
    pub(crate) fn log(&self) -> String {
        match &self.process {
            Process::None => String::new(),
            Process::Portolan(agent) => agent.log_tail(5).join("\n"),
            Process::KubeProxy(_, log) => {
                let text = fs::read_to_string(log).unwrap_or_default();
                let lines: Vec<_> = text.lines().rev().take(5).collect();
                lines.into_iter().rev().collect::<Vec<_>>().join("\n")
            }
        }
    }

    /// The number of syncs since its start and the seconds that they took, by a metric that both proxies have.
    pub(crate) fn syncs(&self) -> Result<(f64, f64)> {
        if self.pid().is_none() {
            return Ok((0.0, 0.0));
        }
        let (_, text) = http::get(self.world.node(), METRICS.ip(), METRICS, "/metrics")?;
        let value = |name: &str| -> f64 {
            let of = |line: &str| -> Option<f64> {
                let rest = line.strip_prefix(name)?;
                // With labels or without.
                rest.split_whitespace().last()?.parse().ok()
            };
            text.lines().filter_map(of).sum()
        };
        const NAME: &str = "kubeproxy_sync_proxy_rules_duration_seconds";
        Ok((
            value(&format!("{NAME}_count")),
            value(&format!("{NAME}_sum")),
        ))
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if let Process::KubeProxy(child, _) = &mut self.process {
            // kube-proxy leaves its rules however it ends.
            _ = child.kill();
            _ = child.wait();
            let node = self.world.node();
            if let Err(error) = self.setup.apply(node) {
                eprintln!("remove kube-proxy's rules: {error:#}");
            }
        }
        // Old entries would swallow packets of the client ports that they hold.
        if let Err(error) = self.world.node().feed("conntrack", &["-F"], "") {
            eprintln!("forget connections: {error:#}");
        }
    }
}

fn portolan<'a>(
    world: &'a World,
    programs: &Programs,
    kubeconfig: &Path,
    proxy: Proxy,
) -> Result<Agent<'a>> {
    let balancing = match proxy {
        Proxy::PortolanSocket => SocketBalancing::All,
        _ => SocketBalancing::Host,
    };
    let config = config(match proxy {
        Proxy::PortolanRedirect => Forwarding::Redirect,
        _ => Forwarding::Stack,
    });
    let options = Options {
        binary: &programs.portolan,
        node_name: "node-a",
        cluster_cidrs: &[CLUSTER_CIDR.parse().context("a range")?],
        config: &config,
        socket_balancing: balancing,
        kubeconfig: Some(kubeconfig),
        cgroup_root: world.cgroup().path(),
    };
    Agent::start(world.node(), &options, &Manifests::Text(""))
}

fn kube_proxy(
    world: &World,
    proxy: Proxy,
    programs: &Programs,
    kubeconfig: &Path,
    log: &Path,
) -> Result<Child> {
    let mode = match proxy.slow() {
        Proxy::Iptables => "iptables",
        _ => "nftables",
    };
    let mut config = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": mode,
        "hostnameOverride": "node-a",
        "clusterCIDR": CLUSTER_CIDR,
        "clientConnection": {"kubeconfig": kubeconfig},
        "conntrack": {"maxPerCore": 0},
        "metricsBindAddress": METRICS.to_string(),
        // As portolan serves them; nftables' own default is the first address.
        "nodePortAddresses": ["0.0.0.0/0"],
    });
    if proxy.is_fast() {
        config[mode] = json!({"minSyncPeriod": "100ms"});
    }
    let file = programs.folder.join("kube-proxy.json");
    fs::write(&file, config.to_string()).context("write kube-proxy's configuration")?;
    let mut command = Command::new(&programs.kube_proxy);
    command.arg("--config").arg(file);
    let log = File::create(log).context("make kube-proxy's log")?;
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    end_with_us(&mut command, Signal::SIGKILL);
    world
        .node()
        .enter(|| command.spawn())?
        .with_context(|| format!("start {}", programs.kube_proxy.display()))
}
