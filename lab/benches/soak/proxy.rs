// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Starts the proxy that serves the node (none, portolan or kube-proxy), and changes endpoints.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::{Path, PathBuf},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use ipnet::IpNet;
use lab::{
    load::{manifests, objects::Objects, process::is_running, proxy},
    node::{
        agent::{Agent, Options},
        http,
        kube_proxy::KubeProxy,
        options::HEALTH,
    },
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    cluster::{Endpoint, Frontend, Service, frontend, status},
    world::{NODE, Origin, World},
};

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Proxy {
    /// Nobody: clients choose an endpoint themselves.
    None,
    /// portolan in its default settings.
    Portolan,
    /// kube-proxy in mode nftables.
    Nftables,
}

impl Proxy {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::None => "no proxy",
            Self::Portolan => "portolan",
            Self::Nftables => "kube-proxy nftables",
        }
    }
}

/// Paths of the proxies' programs.
pub(crate) struct Programs {
    pub(crate) portolan: PathBuf,
    pub(crate) kube_proxy: Option<PathBuf>,
    /// portolan with another layout of its maps, for upgrades.
    pub(crate) next_layout: Option<PathBuf>,
}

/// Time to wait after a write to the API until kube-proxy's rules have the change. kube-proxy does
/// not report when they have it.
const TO_TAKE_EFFECT: Duration = Duration::from_secs(3);
const TO_SERVE: Duration = Duration::from_secs(60);

/// A proxy that runs; dropping it ends the proxy.
pub(crate) struct Running<'a> {
    world: &'a World,
    proxy: proxy::Proxy<'a>,
    /// The API server that kube-proxy reads.
    objects: Option<Box<Objects<'a>>>,
    version: u64,
}

impl<'a> Running<'a> {
    /// Starts a proxy, and waits until it serves. `config` is portolan's configuration.
    pub(crate) fn start(
        world: &'a World,
        proxy: Proxy,
        programs: &Programs,
        config: &str,
    ) -> Result<Self> {
        let node = &world.topology.node;
        let mut objects = None;
        let started = match proxy {
            Proxy::None => proxy::Proxy::None,
            Proxy::Portolan => {
                let options = options(world, &programs.portolan, config);
                let manifests = world.cluster.manifests(1);
                let agent = Agent::start(node, &options, &manifests)?;
                proxy::Proxy::Portolan(agent)
            }
            Proxy::Nftables => {
                let program = programs.kube_proxy.as_deref();
                let program = program
                    .context("nftables needs --kube-proxy PROGRAM; cargo xtask soak gives it")?;
                let objects = objects.insert(Box::new(api_server(world)?));
                let kubeconfig = objects.server().kubeconfig();
                let started = KubeProxy::start(node, program, "nftables", None, &kubeconfig)?;
                proxy::Proxy::KubeProxy(started)
            }
        };
        let mut running = Self {
            world,
            proxy: started,
            objects,
            version: 1,
        };
        running.wait()?;
        if proxy != Proxy::None {
            wait_until_served(world)?;
        }
        Ok(running)
    }

    /// Gives a service other endpoints, and waits until they have taken effect.
    pub(crate) fn publish(&mut self, service: Service, endpoints: Vec<Endpoint>) -> Result<()> {
        let cluster = &self.world.cluster;
        cluster.set(service, endpoints);
        self.version += 1;
        if let Some(agent) = self.proxy.agent() {
            agent.publish(&cluster.manifests(self.version))?;
        }
        if let Some(objects) = &self.objects {
            let slices = manifests::text(&cluster.slices(service));
            objects.server().apply(&slices)?;
        }
        self.wait()
    }

    fn wait(&mut self) -> Result<()> {
        if let Some(agent) = self.proxy.agent_mut() {
            let waited = agent.wait_for(self.version);
            return waited.map_err(|error| error.context(self.log()));
        }
        if let Some(pid) = self.proxy.pid() {
            sleep(TO_TAKE_EFFECT);
            ensure!(is_running(pid), "kube-proxy has ended");
        }
        Ok(())
    }

    /// Returns portolan's agent; None if another proxy or none runs.
    pub(crate) fn agent(&self) -> Option<&Agent<'a>> {
        self.proxy.agent()
    }

    /// Returns portolan's agent, to be disturbed.
    pub(crate) fn disturbed(&mut self) -> Result<&mut Agent<'a>> {
        self.proxy.agent_mut().context("only portolan is disturbed")
    }

    /// Ends the agent if it runs, and starts one of this binary. Does not wait for it.
    pub(crate) fn restart(&mut self, binary: &Path, config: &str) -> Result<()> {
        let options = options(self.world, binary, config);
        self.disturbed()?.restart(&options)
    }

    pub(crate) fn signal(&mut self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.disturbed()?.pid().cast_signed());
        kill(pid, signal).context("send the agent a signal")
    }

    pub(crate) fn pins(&self) -> Result<&Path> {
        Ok(self.agent().context("no agent")?.pin_dir())
    }

    pub(crate) fn log(&self) -> String {
        self.proxy.log()
    }

    /// Returns the status and the text of the agent's health; 0 if it does not answer.
    pub(crate) fn health(&self) -> (u16, String) {
        let get = |agent: &Agent<'_>| http::get(agent.namespace(), HEALTH.ip(), HEALTH, "/healthz");
        let health = self.agent().map(get).and_then(Result::ok);
        health.unwrap_or_default()
    }
}

fn options<'a>(world: &'a World, binary: &'a Path, config: &'a str) -> Options<'a> {
    /// The first one is [`kube_proxy::CLUSTER_CIDR`].
    const RANGES: [IpNet; 2] = [
        IpNet::new_assert(IpAddr::V4(Ipv4Addr::new(10, 40, 0, 0)), 16),
        IpNet::new_assert(IpAddr::V6(Ipv6Addr::from_bits(0xfd00_0040 << 96)), 48),
    ];
    Options {
        cluster_cidrs: &RANGES,
        config,
        ..Options::new(binary, world.cgroup.path())
    }
}

/// Starts an API server with all objects, for kube-proxy.
fn api_server(world: &World) -> Result<Objects<'_>> {
    let address = NODE.to_string();
    let objects = Objects::start(&world.topology.node, &address, &address)?;
    let server = objects.server();
    server.apply(&manifests::text(&world.cluster.objects()))?;
    for service in Service::all() {
        server.set_status("service", &service.name(), &status(service))?;
    }
    Ok(objects)
}

fn wait_until_served(world: &World) -> Result<()> {
    let deadline = Instant::now() + TO_SERVE;
    for is_v6 in [false, true] {
        let to = frontend(Service::RollingB, Frontend::ClusterIp, is_v6);
        let connect = || std::net::TcpStream::connect_timeout(&to, Duration::from_secs(1));
        while world.run(Origin::Sandbox(5), connect)?.is_err() {
            ensure!(Instant::now() < deadline, "{to} is not served");
            sleep(Duration::from_millis(100));
        }
    }
    Ok(())
}
