// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A pod that goes without a word: its link and address vanish while clients have connections to
//! it. Pods beside it stay, become not ready, or terminate and still serve, and a new pod gets its
//! address. Only the connections to the pod that has gone may end.

use std::{
    net::Ipv4Addr,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Result;
use lab::lock;

use crate::{
    cluster::{Condition, Endpoint, Service},
    proxy::Running,
    servers::Server,
    world::{LEAVERS, World, server_pod},
};

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

/// When the pods get their new conditions, after the run's beginning: between two updates of a
/// short run.
const BEGIN: Duration = Duration::from_millis(14_500);
/// Time from one step to the next: new conditions, the link goes, the endpoint goes.
const STEP: Duration = Duration::from_secs(1);
/// How long the address is nobody's. Shorter than the time for which portolan ends connections to
/// it (30 s).
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
