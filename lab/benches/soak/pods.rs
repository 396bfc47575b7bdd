// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pods that come and go while clients call them: rolling updates, in which an old pod still serves
//! its open connections while it terminates, and a pod that goes without a word, whose link and
//! address vanish. Pods beside that one stay, become not ready, or terminate and still serve, and a
//! new pod gets its address. Only the connections to the pod that has gone may end.

use std::{
    net::Ipv4Addr,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use lab::{lock, random::Random};

use crate::{
    cluster::{Condition, Endpoint, Service},
    proxy::Running,
    servers::Server,
    world::{LEAVERS, SERVERS, World, server_pod},
};

/// The number of the first pod of the services that are updated. The last pod comes later.
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

    /// Replaces one endpoint of a service by a new pod, at the address of the pod removed last.
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

/// The number of the pod that goes.
const GONE: u8 = LEAVERS.start;
/// The number of the pod that stays as it is.
const STEADY: u8 = GONE + 1;
/// The number of the pod that becomes not ready and goes on answering.
const NOT_READY: u8 = GONE + 2;
/// The number of the pod that terminates and serves until the end.
const TERMINATING: u8 = GONE + 3;
/// The number of the new pod with the address of the one that has gone.
const SUCCESSOR: u8 = GONE + 4;

/// When the pods get their new conditions, after the beginning: between a short run's updates.
const BEGIN: Duration = Duration::from_millis(14_500);
/// Time from one step to the next: new conditions, the link goes, the endpoint goes.
const STEP: Duration = Duration::from_secs(1);
/// How long the address is nobody's. portolan ends connections to it for longer (30 s).
const VACANT: Duration = Duration::from_secs(14);

/// What has become of the pod that goes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// It serves.
    Serves,
    /// It is terminating, and its link will go.
    Leaves,
    /// Its link has gone at this time.
    Gone(Instant),
    /// Its link has gone at this time, and another pod has its address now.
    Replaced(Instant),
}

/// What clients know of the pod that goes, and how many of their connections to it have ended.
pub(crate) struct Departure {
    phase: Mutex<Phase>,
    /// Whether the proxy has to end connections to the pod.
    pub(crate) has_to_end: bool,
    /// Connections that were translated by packets, and at the client's socket.
    pub(crate) ended: [AtomicU64; 2],
}

impl Departure {
    pub(crate) fn new(has_to_end: bool) -> Self {
        Self {
            phase: Mutex::new(Phase::Serves),
            has_to_end,
            ended: Default::default(),
        }
    }
    pub(crate) fn phase(&self) -> Phase {
        *lock(&self.phase)
    }
    /// Returns whether a connection to this endpoint that was opened in the phase `opened` leads to
    /// the pod that goes or has gone.
    pub(crate) fn concerns(&self, endpoint: Option<Ipv4Addr>, opened: Phase) -> bool {
        endpoint == Some(server_pod(GONE))
            && opened <= Phase::Leaves
            && self.phase() > Phase::Serves
    }
    /// Counts one more connection to the pod that has ended.
    pub(crate) fn count(&self, is_at_socket: bool) {
        let [by_packets, at_sockets] = &self.ended;
        let counter = if is_at_socket { at_sockets } else { by_packets };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns the first endpoints of [`Service::Leaving`].
pub(crate) fn endpoints() -> Vec<Endpoint> {
    let pods = [GONE, STEADY, NOT_READY, TERMINATING];
    pods.map(|pod| Endpoint::ready(server_pod(pod))).into()
}

/// The pods of [`Service::Leaving`], and their servers.
pub(crate) struct Leaving<'a> {
    world: &'a World,
    going: Option<Server>,
    others: Vec<Server>,
}

impl<'a> Leaving<'a> {
    pub(crate) fn start(world: &'a World) -> Result<Self> {
        let serve = |pod| world.serve(pod, pod, Service::Leaving.bit());
        let others = [STEADY, NOT_READY, TERMINATING].into_iter().map(serve);
        let leaving = Self {
            world,
            going: Some(serve(GONE)?),
            others: others.collect::<Result<_>>()?,
        };
        world.topology.unplug(World::index(SUCCESSOR))?;
        Ok(leaving)
    }

    /// Takes the next step if its time has come. `lived` is the time since the run's beginning.
    pub(crate) fn step(&mut self, running: &mut Running<'_>, lived: Duration) -> Result<()> {
        let (topology, departure) = (&self.world.topology, &self.world.departure);
        match departure.phase() {
            Phase::Serves if lived >= BEGIN => {
                // Clients ask it nothing more that must be answered.
                *lock(&departure.phase) = Phase::Leaves;
                self.publish(running, Some(Condition::Terminating))?;
            }
            Phase::Leaves if lived >= BEGIN + STEP => {
                topology.unplug(World::index(GONE))?;
                *lock(&departure.phase) = Phase::Gone(Instant::now());
            }
            // KUBE: the endpoint is terminating until the pod object has gone, after the pod.
            Phase::Gone(at) if self.going.is_some() && at.elapsed() >= STEP => {
                self.going = None;
                self.publish(running, None)?;
            }
            Phase::Gone(at) if at.elapsed() >= VACANT => {
                topology.plug_as(World::index(SUCCESSOR), World::index(GONE))?;
                let bit = Service::Leaving.bit();
                self.others.push(self.world.serve(SUCCESSOR, GONE, bit)?);
                self.publish(running, Some(Condition::Ready))?;
                *lock(&departure.phase) = Phase::Replaced(at);
            }
            _ => {}
        }
        Ok(())
    }

    /// Publishes the endpoints. `address`: the condition of the endpoint that goes or has come.
    fn publish(&self, running: &mut Running<'_>, address: Option<Condition>) -> Result<()> {
        let others = [
            (STEADY, Condition::Ready),
            (NOT_READY, Condition::NotReady),
            (TERMINATING, Condition::Terminating),
        ];
        let all = address.map(|condition| (GONE, condition)).into_iter();
        let all = all.chain(others).map(|(pod, condition)| Endpoint {
            address: server_pod(pod),
            condition,
        });
        running.publish(Service::Leaving, all.collect())
    }
}
