// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who serves the attacked node: nobody, or portolan with or without its running agent.

use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};

use super::{
    clients::{Made, connection},
    world::{CLUSTER_IP, Call, World, manifests},
};
use crate::{
    load::{
        proxy::{metrics, samples},
        setup::Setup,
    },
    node::{
        agent::{Agent, Manifests, Options},
        settings::SocketBalancing,
    },
};

/// Time for a proxy to serve its first connection.
const TO_SERVE: Duration = Duration::from_secs(60);
/// The version of the Node object in the manifests that portolan reads.
const VERSION: u64 = 1;

/// Who serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Proxy {
    /// Nobody: clients call the pods themselves.
    Direct,
    /// portolan on the packet path.
    Portolan,
    /// The same after its agent has ended.
    PortolanAlone,
}

/// Packets that portolan has dropped: the counter's name, and its value above 0.
#[derive(Default, Debug)]
pub struct Dropped(pub Vec<(String, u64)>);

/// A node that a proxy serves; dropping this ends the proxy.
pub struct Served<'a> {
    pub(super) world: &'a World,
    proxy: Proxy,
    agent: Option<Agent<'a>>,
    options: Options<'a>,
}

impl<'a> Served<'a> {
    /// Starts a proxy on the node and waits until it serves. `config` is portolan's configuration;
    /// empty for the default.
    pub fn start(
        world: &'a World,
        proxy: Proxy,
        binary: &'a Path,
        config: &'a str,
    ) -> Result<Self> {
        Setup::Bare.apply(world.node())?;
        let mut served = Self {
            world,
            proxy,
            agent: None,
            options: Options {
                config,
                socket_balancing: SocketBalancing::Host,
                ..Options::new(binary, world.cgroup().path())
            },
        };
        if proxy != Proxy::Direct {
            let objects = manifests(VERSION);
            let objects = Manifests::Text(&objects);
            let mut agent = Agent::start(world.node(), &served.options, &objects)?;
            wait_for(&mut agent)?;
            if proxy == Proxy::PortolanAlone {
                agent.end();
            }
            served.agent = Some(agent);
        }
        served.wait_until_served()?;
        Ok(served)
    }

    /// Returns the address that a client calls: the pod's if there is no proxy, else the service's.
    pub(super) fn address(&self, call: Call) -> std::net::SocketAddrV4 {
        match self.proxy {
            Proxy::Direct => call.pod(),
            _ => call.0,
        }
    }

    fn wait_until_served(&self) -> Result<()> {
        let begin = Instant::now();
        let (client, to) = (&self.world.clients()[0], self.address(CLUSTER_IP));
        let patience = Duration::from_millis(200);
        while Made::at_a_rate(client, [1, 1], patience, || connection(to))?.made == 0 {
            ensure!(begin.elapsed() < TO_SERVE, "{to} is not served");
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Returns the packets that portolan has dropped so far; empty without it. An agent that
    /// has ended is started again for this, because only the agent exports the counters.
    pub(super) fn dropped(&mut self) -> Result<Dropped> {
        let Some(agent) = &mut self.agent else {
            return Ok(Dropped::default());
        };
        if self.proxy == Proxy::PortolanAlone {
            agent.restart(&self.options)?;
            wait_for(agent)?;
        }
        let text = metrics(self.world.node())?;
        if self.proxy == Proxy::PortolanAlone {
            agent.end();
        }
        let mut outcomes = samples(&text, "portolan_packets_total{outcome=")?;
        ensure!(!outcomes.is_empty(), "no counters");
        outcomes.retain(|(name, count)| name.starts_with("dropped_") && *count > 0);
        Ok(Dropped(outcomes))
    }
}

fn wait_for(agent: &mut Agent<'_>) -> Result<()> {
    agent
        .wait_for(VERSION)
        .map_err(|error| error.context(agent.log_tail(5).join("\n")))
}
