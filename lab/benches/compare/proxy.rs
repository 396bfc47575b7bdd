// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Starts a proxy on the measured node, reads its metrics and log, ends it, and removes what it
//! leaves behind.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Child,
};

use anyhow::{Context, Result};
use lab::{
    load::setup::{Setup, config},
    node::{
        agent::{Agent, Manifests, Options},
        http,
        kube_proxy::{self, CLUSTER_CIDR},
        options::METRICS,
        settings::{Forwarding, SocketBalancing},
    },
};

use crate::{
    plan::{Cell, Proxy},
    world::World,
};

/// A proxy that runs. Dropping it ends the proxy and removes kube-proxy's rules.
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

/// Paths of the proxies' programs.
pub(crate) struct Programs {
    pub(crate) portolan: PathBuf,
    pub(crate) kube_proxy: PathBuf,
    /// The folder for the logs and settings of kube-proxy.
    pub(crate) folder: PathBuf,
}

impl<'a> Running<'a> {
    /// Starts the cell's proxy, which reads the objects of an API server.
    pub(crate) fn start(
        world: &'a World,
        cell: &Cell,
        programs: &Programs,
        kubeconfig: &Path,
    ) -> Result<Self> {
        let process = match cell.proxy {
            Proxy::Direct => Process::None,
            Proxy::PortolanSocket
            | Proxy::PortolanPacket
            | Proxy::PortolanAuto
            | Proxy::PortolanBoth => {
                Process::Portolan(portolan(world, programs, kubeconfig, cell.proxy)?)
            }
            Proxy::Nftables | Proxy::NftablesFast | Proxy::Iptables | Proxy::IptablesFast => {
                let child = kube_proxy(world, cell.proxy, programs, kubeconfig)?;
                Process::KubeProxy(child, programs.folder.join(kube_proxy::LOG))
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

    /// Returns the agent; None if another proxy runs.
    pub(crate) fn agent(&self) -> Option<&Agent<'a>> {
        match &self.process {
            Process::Portolan(agent) => Some(agent),
            _ => None,
        }
    }

    /// Returns the last lines of the proxy's log.
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

    /// Returns the number of syncs since the proxy's start and the seconds that they took in total,
    /// from a metric that portolan and kube-proxy have. Both are 0 without a proxy.
    pub(crate) fn syncs(&self) -> Result<(f64, f64)> {
        if self.pid().is_none() {
            return Ok((0.0, 0.0));
        }
        // portolan writes both IP families in one sync and counts it for each of them: leave one
        // out.
        let other = match self.process {
            Process::Portolan(_) => "ip_family=\"IPv6\"",
            _ => "no other",
        };
        let text = self.metrics()?;
        let lines = || text.lines().filter(|line| !line.contains(other));
        const NAME: &str = "kubeproxy_sync_proxy_rules_duration_seconds";
        Ok((
            sum(lines(), &format!("{NAME}_count")),
            sum(lines(), &format!("{NAME}_sum")),
        ))
    }

    fn metrics(&self) -> Result<String> {
        let (_, text) = http::get(self.world.node(), METRICS.ip(), METRICS, "/metrics")?;
        Ok(text)
    }
}

fn sum<'t>(lines: impl Iterator<Item = &'t str>, begin: &str) -> f64 {
    let of = |line: &str| -> Option<f64> {
        let rest = line.strip_prefix(begin)?;
        // The line may have labels.
        rest.split_whitespace().last()?.parse().ok()
    };
    lines.filter_map(of).sum()
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if let Process::KubeProxy(child, _) = &mut self.process {
            // kube-proxy leaves its rules behind however it ends.
            _ = child.kill();
            _ = child.wait();
            let node = self.world.node();
            if let Err(error) = self.setup.apply(node) {
                eprintln!("remove kube-proxy's rules: {error:#}");
            }
        }
        // Old conntrack entries would apply to later packets from the same client ports.
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
        Proxy::PortolanSocket | Proxy::PortolanBoth => SocketBalancing::All,
        _ => SocketBalancing::Host,
    };
    let forwarding = match proxy {
        Proxy::PortolanAuto | Proxy::PortolanBoth => Forwarding::Auto,
        _ => Forwarding::Stack,
    };
    let config = config(forwarding);
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
) -> Result<Child> {
    let mode = match proxy.slow() {
        Proxy::Iptables => "iptables",
        _ => "nftables",
    };
    let period = proxy.is_fast().then_some("100ms");
    let (program, folder) = (&programs.kube_proxy, &programs.folder);
    kube_proxy::start(world.node(), program, mode, period, kubeconfig, folder)
}
