// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Starts the proxy that serves the node (none, portolan or kube-proxy), and gives it the changes
//! of endpoints.

use std::{
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
    process::Child,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use ipnet::IpNet;
use lab::{
    load::objects::Objects,
    node::{
        agent::{Agent, Manifests, Options},
        http, kube_proxy,
        options::{HEALTH, METRICS},
        settings::SocketBalancing,
    },
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::json;
use tempfile::TempDir;

use crate::{
    cluster::{Cluster, Frontend, Service, frontend, load_balancer, service_object, text},
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
    cluster: &'a Cluster,
    process: Process<'a>,
    version: u64,
}

enum Process<'a> {
    None,
    Portolan(Agent<'a>),
    KubeProxy {
        child: Child,
        objects: Box<Objects<'a>>,
        _folder: TempDir,
    },
}

impl<'a> Running<'a> {
    /// Starts a proxy, and waits until it serves. `config` is portolan's configuration.
    pub(crate) fn start(
        world: &'a World,
        cluster: &'a Cluster,
        proxy: Proxy,
        programs: &Programs,
        config: &str,
    ) -> Result<Self> {
        let process = match proxy {
            Proxy::None => Process::None,
            Proxy::Portolan => {
                Process::Portolan(portolan(world, cluster, &programs.portolan, config)?)
            }
            Proxy::Nftables => {
                let program = programs.kube_proxy.as_deref();
                let program = program
                    .context("nftables needs --kube-proxy PROGRAM; cargo xtask soak gives it")?;
                kube_proxy(world, cluster, program)?
            }
        };
        let mut running = Self {
            cluster,
            process,
            version: 1,
        };
        running.wait()?;
        if proxy != Proxy::None {
            wait_until_served(world)?;
        }
        Ok(running)
    }

    /// Gives the proxy the current endpoints of a service, and waits until they have taken effect.
    pub(crate) fn publish(&mut self, service: Service) -> Result<()> {
        self.version += 1;
        match &mut self.process {
            Process::None => return Ok(()),
            Process::Portolan(agent) => agent.publish(&self.cluster.manifests(self.version))?,
            Process::KubeProxy { objects, .. } => {
                let slice = self.cluster.slice(service);
                objects.server().apply(&slice.to_string())?;
            }
        }
        self.wait()
    }

    fn wait(&mut self) -> Result<()> {
        match &mut self.process {
            Process::None => {}
            Process::Portolan(agent) => agent
                .wait_for(self.version)
                .map_err(|error| error.context(agent.log_tail(5).join("\n")))?,
            Process::KubeProxy { child, .. } => {
                sleep(TO_TAKE_EFFECT);
                let ended = child.try_wait().context("look after kube-proxy")?;
                ensure!(ended.is_none(), "kube-proxy has ended");
            }
        }
        Ok(())
    }

    /// Returns portolan's agent; None if another proxy or none runs.
    pub(crate) fn agent(&self) -> Option<&Agent<'a>> {
        match &self.process {
            Process::Portolan(agent) => Some(agent),
            _ => None,
        }
    }

    /// Ends the agent if it runs, and starts one of this binary. Does not wait for it.
    pub(crate) fn restart(&mut self, world: &World, binary: &Path, config: &str) -> Result<()> {
        match &mut self.process {
            Process::Portolan(agent) => agent.restart(&options(world, binary, config)?),
            _ => bail!("only portolan is disturbed"),
        }
    }

    pub(crate) fn end(&mut self) {
        if let Process::Portolan(agent) = &mut self.process {
            agent.end();
        }
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        let agent = self.agent().context("no agent")?;
        let pid = Pid::from_raw(agent.pid().cast_signed());
        kill(pid, signal).context("send the agent a signal")
    }

    pub(crate) fn pins(&self) -> Result<&Path> {
        Ok(self.agent().context("no agent")?.pin_dir())
    }

    pub(crate) fn log(&self) -> String {
        self.agent()
            .map_or_else(String::new, |agent| agent.log_tail(5).join("\n"))
    }

    /// Returns the status and the text of the agent's health; 0 if it does not answer.
    pub(crate) fn health(&self) -> (u16, String) {
        let get = |agent: &Agent<'_>| http::get(agent.namespace(), HEALTH.ip(), HEALTH, "/healthz");
        let health = self.agent().map(get).and_then(Result::ok);
        health.unwrap_or_default()
    }

    /// Returns the text of portolan's metrics; None if another proxy or none runs.
    pub(crate) fn metrics(&self) -> Result<Option<String>> {
        let Some(agent) = self.agent() else {
            return Ok(None);
        };
        let (_, text) = http::get(agent.namespace(), METRICS.ip(), METRICS, "/metrics")?;
        Ok(Some(text))
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if let Process::KubeProxy { child, .. } = &mut self.process {
            _ = child.kill();
            _ = child.wait();
        }
    }
}

fn portolan<'a>(
    world: &'a World,
    cluster: &Cluster,
    binary: &Path,
    config: &str,
) -> Result<Agent<'a>> {
    let manifests = cluster.manifests(1);
    let options = options(world, binary, config)?;
    Agent::start(world.node(), &options, &Manifests::Text(&manifests))
}

fn options<'a>(world: &'a World, binary: &'a Path, config: &'a str) -> Result<Options<'a>> {
    /// As [`kube_proxy::CLUSTER_CIDR`].
    const RANGES: [IpNet; 1] = [IpNet::new_assert(
        IpAddr::V4(Ipv4Addr::new(10, 40, 0, 0)),
        16,
    )];
    Ok(Options {
        binary,
        node_name: "node-a",
        cluster_cidrs: &RANGES,
        config,
        socket_balancing: SocketBalancing::All,
        kubeconfig: None,
        cgroup_root: world.cgroup().path(),
    })
}

fn kube_proxy<'a>(world: &'a World, cluster: &Cluster, program: &Path) -> Result<Process<'a>> {
    let objects = Box::new(Objects::start(world.node(), &NODE.to_string())?);
    let server = objects.server();
    let services = Service::ALL.map(service_object);
    let slices = Service::ALL.map(|service| cluster.slice(service));
    server.apply(&text(services.iter().chain(&slices)))?;
    for service in Service::ALL {
        let status =
            json!({"status": {"loadBalancer": {"ingress": [{"ip": load_balancer(service)}]}}});
        server.kubectl(&[
            "patch",
            "service",
            service.name(),
            "--subresource=status",
            "--type=merge",
            "--patch",
            &status.to_string(),
        ])?;
    }
    let folder = TempDir::with_prefix("portolan-lab-")?;
    let kubeconfig = objects.kubeconfig();
    let child = kube_proxy::start(
        world.node(),
        program,
        "nftables",
        None,
        &kubeconfig,
        folder.path(),
    )?;
    Ok(Process::KubeProxy {
        child,
        objects,
        _folder: folder,
    })
}

fn wait_until_served(world: &World) -> Result<()> {
    let deadline = Instant::now() + TO_SERVE;
    let [to, _] = frontend(Service::RollingB, Frontend::ClusterIp);
    let connect = || std::net::TcpStream::connect_timeout(&to, Duration::from_secs(1));
    while world.run(Origin::Sandbox(5), connect)?.is_err() {
        ensure!(Instant::now() < deadline, "{to} is not served");
        sleep(Duration::from_millis(100));
    }
    Ok(())
}
