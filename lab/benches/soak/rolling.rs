// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rolling updates: a new pod becomes ready, an old pod still serves its open connections while it
//! terminates, then the old pod ends.

use std::{sync::Arc, thread::sleep, time::Duration};

use anyhow::{Context, Result};
use lab::random::Random;

use crate::{
    cluster::{Cluster, Condition, Endpoint, Service},
    proxy::Running,
    servers::{Arrivals, Server},
    world::{SERVERS, World, server_pod},
};

/// The number of the first pod of the services that are updated. At first, the pod with the highest
/// number does not exist.
const FIRST: u8 = 10;
pub(crate) const ROLLING: [Service; 2] = [Service::RollingA, Service::RollingB];
/// How long a terminating pod still serves its open connections.
const TO_DRAIN: Duration = Duration::from_secs(4);
/// Time for datagrams that are still on the network when a pod's endpoint is removed.
const TO_ARRIVE: Duration = Duration::from_millis(500);

/// The pods of the services that are updated.
pub(crate) struct Rolling<'a> {
    world: &'a World,
    cluster: &'a Cluster,
    arrivals: &'a Arc<Arrivals>,
    /// The servers of the pods from number [`FIRST`] on; None for the pod that does not exist now.
    servers: Vec<Option<Server>>,
    /// The number of the pod that does not exist now.
    free: u8,
    random: Random,
    pub(crate) updates: u32,
}

impl<'a> Rolling<'a> {
    pub(crate) fn start(
        world: &'a World,
        cluster: &'a Cluster,
        arrivals: &'a Arc<Arrivals>,
        random: Random,
    ) -> Result<Self> {
        let mut rolling = Self {
            world,
            cluster,
            arrivals,
            servers: Vec::new(),
            free: SERVERS - 1,
            random,
            updates: 0,
        };
        for pod in FIRST..SERVERS - 1 {
            let is_of = |service: &Service| cluster.serves(*service, server_pod(pod).into());
            let service = ROLLING.into_iter().find(is_of);
            let bit = service.context("a pod of no service")?.bit();
            let server = world.serve(pod, pod, bit, arrivals)?;
            rolling.servers.push(Some(server));
        }
        rolling.servers.push(None);
        world.topology.unplug(World::index(rolling.free))?;
        Ok(rolling)
    }

    /// Replaces one endpoint of a service by a new pod. The new pod has the address of the pod that
    /// was removed last.
    pub(crate) fn update(&mut self, running: &mut Running<'_>) -> Result<()> {
        let service = ROLLING[self.updates as usize % ROLLING.len()];
        self.updates += 1;
        let topology = &self.world.topology;
        let new = self.free;
        topology.plug(World::index(new))?;
        self.servers[usize::from(new - FIRST)] =
            Some(self.world.serve(new, new, service.bit(), self.arrivals)?);
        let before = self.cluster.endpoints(service);
        let mut endpoints = before.clone();
        endpoints.push(Endpoint::ready(server_pod(new)));
        self.publish(running, service, &endpoints)?;

        let leaving = self.random.below(before.len() as u64) as usize;
        endpoints[leaving].condition = Condition::Terminating;
        self.publish(running, service, &endpoints)?;
        let old = endpoints[leaving].address.octets()[3] - server_pod(0).octets()[3];
        let server = self.servers[usize::from(old - FIRST)].take();
        let server = server.context("an endpoint without a pod")?;
        server.drain();
        sleep(TO_DRAIN);

        endpoints.remove(leaving);
        self.publish(running, service, &endpoints)?;
        sleep(TO_ARRIVE);
        drop(server);
        topology.unplug(World::index(old))?;
        self.free = old;
        Ok(())
    }

    fn publish(
        &self,
        running: &mut Running<'_>,
        service: Service,
        endpoints: &[Endpoint],
    ) -> Result<()> {
        self.cluster.set(service, endpoints.to_vec());
        running.publish(service)
    }
}
