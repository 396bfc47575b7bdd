// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The proxies on the attacked node: none, portolan with or without its running agent, kube-proxy.

use std::{
    path::PathBuf,
    process::Child,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use super::{
    clients::at_a_rate,
    world::{Call, NODE, World, manifests},
};
use crate::{
    load::{objects::Objects, setup::Setup},
    node::{
        agent::{Agent, Manifests, Options},
        http, kube_proxy,
        options::METRICS,
        settings::SocketBalancing,
    },
};

/// Time for a proxy to serve its first connection. Long enough for kube-proxy's start on a busy
/// machine.
const TO_SERVE: Duration = Duration::from_secs(60);
/// The version of the Node object in the manifests that portolan reads.
const VERSION: u64 = 1;

/// Who serves.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, clap::ValueEnum)]
pub enum Proxy {
    /// Nobody: clients call the pods themselves.
    Direct,
    /// portolan on the packet path.
    Portolan,
    /// The same after its agent has ended.
    PortolanAlone,
    /// kube-proxy in mode nftables.
    Nftables,
}

impl Proxy {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "no proxy",
            Self::Portolan => "portolan",
            Self::PortolanAlone => "portolan, agent ended",
            Self::Nftables => "kube-proxy nftables",
        }
    }
}

/// Paths of the proxies' programs.
pub struct Programs {
    pub portolan: PathBuf,
    /// Required only for [`Proxy::Nftables`].
    pub kube_proxy: Option<PathBuf>,
}

/// Packets that portolan has dropped: the counter's name without `dropped_`, and its value above 0.
#[derive(Default, Debug)]
pub struct Dropped(pub Vec<(String, u64)>);

impl std::fmt::Display for Dropped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (number, (reason, count)) in self.0.iter().enumerate() {
            let comma = if number == 0 { "" } else { ", " };
            write!(f, "{comma}{reason} {count}")?;
        }
        Ok(())
    }
}

/// A node that a proxy serves; dropping this ends the proxy.
pub struct Served<'a> {
    pub(super) world: &'a World,
    proxy: Proxy,
    process: Process<'a>,
    programs: &'a Programs,
    config: &'a str,
}

enum Process<'a> {
    None,
    Portolan(Agent<'a>),
    KubeProxy {
        child: Child,
        /// The API server that kube-proxy watches.
        _objects: Box<Objects<'a>>,
        _folder: TempDir,
    },
}

impl<'a> Served<'a> {
    /// Starts a proxy on the node and waits until it serves. `config` is portolan's configuration;
    /// empty for the default.
    pub fn start(
        world: &'a World,
        proxy: Proxy,
        programs: &'a Programs,
        config: &'a str,
    ) -> Result<Self> {
        let setup = match proxy {
            Proxy::Nftables => Setup::Netfilter,
            _ => Setup::Bare,
        };
        setup.apply(world.node())?;
        let mut served = Self {
            world,
            proxy,
            process: Process::None,
            programs,
            config,
        };
        match proxy {
            Proxy::Direct => {}
            Proxy::Portolan | Proxy::PortolanAlone => {
                let node = format!(
                    "apiVersion: v1\nkind: Node\nmetadata: {{name: node-a, resourceVersion: '{VERSION}'}}\nstatus: {{addresses: [{{type: InternalIP, address: {NODE}}}]}}\n{}",
                    manifests()
                );
                let options = options(world, programs, config);
                let mut agent = Agent::start(world.node(), &options, &Manifests::Text(&node))?;
                wait_for(&mut agent)?;
                if proxy == Proxy::PortolanAlone {
                    agent.end();
                }
                served.process = Process::Portolan(agent);
            }
            Proxy::Nftables => served.process = start_kube_proxy(world, programs)?,
        }
        served.wait_until_served()?;
        Ok(served)
    }

    pub fn proxy(&self) -> Proxy {
        self.proxy
    }

    /// Returns the address that a client calls: the pod's if there is no proxy, else the service's.
    pub(super) fn address(&self, call: Call) -> std::net::SocketAddrV4 {
        match self.proxy {
            Proxy::Direct => call.pod(),
            _ => call.service(),
        }
    }

    fn wait_until_served(&self) -> Result<()> {
        let begin = Instant::now();
        let (client, to) = (&self.world.clients()[0], self.address(Call::Two));
        while at_a_rate(client, to, 1, 1, Duration::from_millis(200))?.made == 0 {
            ensure!(begin.elapsed() < TO_SERVE, "{to} is not served");
            thread::sleep(Duration::from_millis(50));
        }
        if self.proxy == Proxy::Nftables {
            // Conntrack entries of packets sent before the rules existed would stay untranslated.
            self.world.node().feed("conntrack", &["-F"], "")?;
        }
        Ok(())
    }

    /// Returns the packets that portolan has dropped so far; empty for other proxies. An agent that
    /// has ended is started again for this, because only the agent exports the counters.
    pub(super) fn dropped(&mut self) -> Result<Dropped> {
        let Process::Portolan(agent) = &mut self.process else {
            return Ok(Dropped::default());
        };
        if self.proxy == Proxy::PortolanAlone {
            agent.restart(&options(self.world, self.programs, self.config))?;
            wait_for(agent)?;
        }
        let (_, text) = http::get(self.world.node(), METRICS.ip(), METRICS, "/metrics")?;
        if self.proxy == Proxy::PortolanAlone {
            agent.end();
        }
        let dropped = |line: &str| {
            let (outcome, count) = line
                .strip_prefix("portolan_packets_total{outcome=\"dropped_")?
                .split_once("\"} ")?;
            let count: u64 = count.trim().parse().ok()?;
            (count > 0).then(|| (outcome.to_owned(), count))
        };
        ensure!(text.contains("portolan_packets_total{"), "no counters");
        Ok(Dropped(text.lines().filter_map(dropped).collect()))
    }
}

impl Drop for Served<'_> {
    fn drop(&mut self) {
        if let Process::KubeProxy { child, .. } = &mut self.process {
            _ = child.kill();
            _ = child.wait();
        }
    }
}

fn options<'a>(world: &'a World, programs: &'a Programs, config: &'a str) -> Options<'a> {
    Options {
        binary: &programs.portolan,
        node_name: "node-a",
        cluster_cidrs: &[],
        config,
        socket_balancing: SocketBalancing::Host,
        kubeconfig: None,
        cgroup_root: world.cgroup().path(),
    }
}

fn wait_for(agent: &mut Agent<'_>) -> Result<()> {
    agent
        .wait_for(VERSION)
        .map_err(|error| error.context(agent.log_tail(5).join("\n")))
}

fn start_kube_proxy<'a>(world: &'a World, programs: &Programs) -> Result<Process<'a>> {
    let program = programs.kube_proxy.as_deref();
    let program = program.context("name kube-proxy with --kube-proxy")?;
    let objects = Objects::start(world.node(), &NODE.to_string())?;
    objects.server().apply(&manifests())?;
    let folder = TempDir::with_prefix("portolan-lab-")?;
    let kubeconfig = objects.kubeconfig();
    let (node, folder_path) = (world.node(), folder.path());
    let child = kube_proxy::start(node, program, "nftables", None, &kubeconfig, folder_path)?;
    Ok(Process::KubeProxy {
        child,
        _objects: Box::new(objects),
        _folder: folder,
    })
}
