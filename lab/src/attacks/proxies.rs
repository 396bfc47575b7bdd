// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who serves the attacked node: portolan with or without its running agent.

use std::path::Path;

use anyhow::{Result, ensure};

use super::world::{World, manifests};
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

/// The version of the Node object in the manifests that portolan reads.
const VERSION: u64 = 1;

/// Who serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Proxy {
    /// portolan on the packet path.
    Portolan,
    /// The same after its agent has ended.
    PortolanAlone,
}

/// Packets that portolan has dropped: the counter's name, and its value above 0.
#[derive(Debug)]
pub struct Dropped(pub Vec<(String, u64)>);

/// A node that a proxy serves; dropping this ends the proxy.
pub struct Served<'a> {
    pub(super) world: &'a World,
    proxy: Proxy,
    agent: Agent<'a>,
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
        let node = &world.topology.node;
        Setup::Bare.apply(node)?;
        let options = Options {
            config,
            socket_balancing: SocketBalancing::Host,
            ..Options::new(binary, world.cgroup.path())
        };
        let objects = manifests(VERSION);
        let mut agent = Agent::start(node, &options, &Manifests::Text(&objects))?;
        wait_for(&mut agent)?;
        if proxy == Proxy::PortolanAlone {
            agent.end();
        }
        Ok(Self {
            world,
            proxy,
            agent,
            options,
        })
    }

    /// Returns the packets that portolan has dropped so far. An agent that has ended is started
    /// again for this, because only the agent exports the counters.
    pub(super) fn dropped(&mut self) -> Result<Dropped> {
        let is_alone = self.proxy == Proxy::PortolanAlone;
        if is_alone {
            self.agent.restart(&self.options)?;
            wait_for(&mut self.agent)?;
        }
        let text = metrics(&self.world.topology.node)?;
        if is_alone {
            self.agent.end();
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
