// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The node of the storm: its agent, the API server that the agent follows, and how both change.

use std::time::{Duration, Instant};

use datapath::{
    Capacities,
    maps::{pinned_capacities, pins::generations},
    read::Reader,
};
use lab::load::objects::Objects;

use super::{
    kinds::Service,
    record::Record,
    topology::{self, BACKENDS, STEADY, Topology, services, slices},
};
use crate::{
    agent::{Agent, wait},
    objects::NAMESPACE,
    random::Random,
    world::{PATIENCE, World},
};

/// The number of services without a client; their endpoints change.
pub(crate) const OTHERS: u32 = 100;
/// The sizes of maps at the start, small so that they grow.
const SIZES: &str = "frontends: 256, records: 256, slots: 512, backends: 256";
const FLOWS: u64 = 16_384;

/// The node, and everything on it that changes.
pub(crate) struct Node<'a> {
    pub(crate) world: &'a World,
    pub(crate) place: &'a Topology<'a>,
    pub(crate) record: &'a Record,
    pub(crate) objects: Objects<'a>,
    pub(crate) random: Random,
    agent: Option<Agent>,
    flows: u64,
    moving: u8,
}

impl<'a> Node<'a> {
    pub(crate) fn start(
        world: &'a World,
        place: &'a Topology<'a>,
        record: &'a Record,
        random: Random,
    ) -> Self {
        let mut objects = Objects::start(world.node(), "10.40.0.1").expect("an API server");
        let server = objects.server();
        server.apply(NAMESPACE).expect("a namespace");
        server.apply(&services()).expect("the services");
        for service in Service::ALL {
            let stored = server.store(&slices(service, STEADY));
            stored.expect("their endpoints");
        }
        // Begins with the largest number of endpoints: full maps refuse changes until they have
        // grown.
        objects.grow(OTHERS, 3).expect("more services");
        let mut node = Self {
            world,
            place,
            record,
            objects,
            random,
            agent: None,
            flows: FLOWS,
            moving: STEADY,
        };
        node.begin();
        node
    }

    pub(crate) fn agent(&self) -> &Agent {
        self.agent.as_ref().expect("it runs")
    }

    /// Removes the agent from the node and returns it, for a caller that ends it.
    pub(crate) fn take(&mut self) -> Agent {
        self.agent.take().expect("it runs")
    }

    /// Starts an agent and does not wait for it.
    pub(crate) fn spawn(&mut self) {
        let flows = self.flows;
        let kubeconfig = self.objects.kubeconfig();
        let config = self.world.configure(&format!(
            "portolan: {{maps: {{{SIZES}, flows: {flows}}}}}\nclientConnection: {{kubeconfig: '{}'}}\n",
            kubeconfig.display()
        ));
        // The agent has its own mount namespace, so that a test can unmount something.
        let starter = ["unshare", "--mount"];
        let agent = self.world.spawn_by(&starter, &["--config", &config]);
        self.record.follow(agent.log_file());
        self.agent = Some(agent);
    }

    /// Starts an agent and waits until it serves everything.
    pub(crate) fn begin(&mut self) {
        self.spawn();
        self.wait_until_well();
        self.follow();
    }

    /// Changes the size of the flow table for the next agent.
    pub(crate) fn resize(&mut self) {
        self.flows += 1024 + self.random.below(1024);
    }

    /// Waits until the agent reports no fault and only one generation of maps is left.
    pub(crate) fn wait_until_well(&self) {
        self.wait("all is well", PATIENCE, || self.is_well());
    }

    fn is_well(&self) -> bool {
        let (status, body) = self.agent().health();
        let is_alone = generations(self.world.pins()).is_ok_and(|all| all.len() == 1);
        status == 200 && is_alone && body.contains(r#""faultCount":0"#)
    }

    /// Waits until all has been well for 1.5 s. The agent checks the maps more often, so no map is
    /// about to grow.
    pub(crate) fn settle(&self) {
        let mut since = Instant::now();
        self.wait("all stays well", PATIENCE, || {
            if !self.is_well() {
                since = Instant::now();
            }
            since.elapsed() > Duration::from_millis(1500)
        });
    }

    pub(crate) fn wait(&self, what: &str, limit: Duration, is_so: impl FnMut() -> bool) {
        let state = || format!("{:?}: {}", self.agent().health(), self.agent().log());
        wait(limit, what, state, is_so);
    }

    /// Writes other endpoints for the service `Moving`. Without `at_once`, call [`Self::follow`]
    /// afterwards.
    pub(crate) fn change(&mut self, at_once: bool) {
        self.moving = 1 + self.random.below((1 << BACKENDS) - 1) as u8;
        self.record.moving.change(self.moving, at_once);
        let stored = self
            .objects
            .server()
            .store(&slices(Service::Moving, self.moving));
        stored.expect("endpoints");
    }

    /// Waits until the maps hold the last endpoints.
    pub(crate) fn follow(&self) {
        let mut wanted: Vec<_> = topology::endpoints(self.moving).collect();
        wanted.sort_unstable();
        self.wait("the last endpoints", PATIENCE, || {
            let rows = Reader::open(self.world.pins()).and_then(|reader| reader.backends());
            let Ok(rows) = rows else {
                // The maps have another layout.
                return true;
            };
            let ours = rows.iter().filter(|row| row.service.ends_with("/moving"));
            let selected = ours.filter(|row| !row.sets.is_empty() && row.port_name == "tcp");
            let mut found: Vec<_> = selected.map(|row| row.address.ip()).collect();
            found.sort_unstable();
            found == wanted
        });
        self.record.moving.settle();
    }

    pub(crate) fn capacities(&self) -> Option<Capacities> {
        pinned_capacities(self.world.pins()).ok().flatten()
    }
}
