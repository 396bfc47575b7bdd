// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rolling updates: a new pod becomes ready, an old pod still serves its open connections while it
//! terminates, then the old pod ends.

use std::{thread::sleep, time::Duration};

use anyhow::{Context, Result};
use lab::random::Random;

use crate::{
    cluster::{Condition, Endpoint, Service},
    proxy::Running,
    servers::Server,
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
/// Time for the last packets of a pod whose servers have ended.
const TO_LEAVE: Duration = Duration::from_millis(300);

/// The pods of the services that are updated.
pub(crate) struct Rolling<'a> {
    world: &'a World,
    /// The servers of the pods from number [`FIRST`] on; None for the pod that does not exist now.
    servers: Vec<Option<Server>>,
    /// The number of the pod that does not exist now.
    free: u8,
    random: Random,
    pub(crate) updates: u32,
}

impl<'a> Rolling<'a> {
    pub(crate) fn start(world: &'a World, random: Random) -> Result<Self> {
        let free = SERVERS - 1;
        let serve = |pod| world.serve(pod, pod, world.cluster.bits(pod)).map(Some);
        let mut servers = (FIRST..free).map(serve).collect::<Result<Vec<_>>>()?;
        servers.push(None);
        world.topology.unplug(World::index(free))?;
        Ok(Self {
            world,
            servers,
            free,
            random,
            updates: 0,
        })
    }

    /// Replaces one endpoint of a service by a new pod. The new pod has the address of the pod that
    /// was removed last.
    pub(crate) fn update(&mut self, running: &mut Running<'_>) -> Result<()> {
        let service = ROLLING[self.updates as usize % ROLLING.len()];
        self.updates += 1;
        let topology = &self.world.topology;
        let new = self.free;
        topology.plug(World::index(new))?;
        let server = self.world.serve(new, new, service.bit())?;
        self.servers[usize::from(new - FIRST)] = Some(server);
        let mut endpoints = self.world.cluster.endpoints(service);
        let leaving = self.random.below(endpoints.len() as u64) as usize;
        endpoints.push(Endpoint::ready(server_pod(new)));
        running.publish(service, endpoints.clone())?;

        endpoints[leaving].condition = Condition::Terminating;
        running.publish(service, endpoints.clone())?;
        let old = endpoints[leaving].address.octets()[3] - server_pod(0).octets()[3];
        let server = self.servers[usize::from(old - FIRST)].take();
        let server = server.context("an endpoint without a pod")?;
        server.drain();
        sleep(TO_DRAIN);

        endpoints.remove(leaving);
        running.publish(service, endpoints)?;
        sleep(TO_ARRIVE);
        drop(server);
        sleep(TO_LEAVE);
        topology.unplug(World::index(old))?;
        self.free = old;
        Ok(())
    }
}
