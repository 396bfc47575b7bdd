// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who serves the attacked node: portolan with or without its running agent.

use std::path::Path;

use anyhow::Result;

use super::world::{World, manifests};
use crate::{
    load::setup::Setup,
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

/// A node that a proxy serves; dropping this ends the proxy.
pub struct Served<'a> {
    pub(super) world: &'a World,
    _agent: Agent<'a>,
}

impl<'a> Served<'a> {
    /// Starts a proxy on the node and waits until it serves. `config` is portolan's configuration;
    /// empty for the default.
    pub fn start(world: &'a World, proxy: Proxy, binary: &Path, config: &str) -> Result<Self> {
        let node = &world.topology.node;
        Setup::Bare.apply(node)?;
        let options = Options {
            config,
            socket_balancing: SocketBalancing::Host,
            ..Options::new(binary, world.cgroup.path())
        };
        let objects = manifests(VERSION);
        let mut agent = Agent::start(node, &options, &Manifests::Text(&objects))?;
        agent
            .wait_for(VERSION)
            .map_err(|error| error.context(agent.log_tail(5).join("\n")))?;
        if proxy == Proxy::PortolanAlone {
            agent.end();
        }
        Ok(Self {
            world,
            _agent: agent,
        })
    }
}
