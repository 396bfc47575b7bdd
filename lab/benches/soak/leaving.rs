// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A pod that goes without a word: its link and address vanish while clients have connections to
//! it. Pods beside it stay, become not ready, or terminate and still serve, and a new pod gets its
//! address. Only the connections to the pod that has gone may end.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Result;

use crate::{
    cluster::{Cluster, Condition, Endpoint, Service},
    proxy::Running,
    servers::{Arrivals, Server},
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
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn set(&self, phase: Phase) {
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner) = phase;
    }
    /// Returns whether a connection to this endpoint that was opened in the phase `opened` leads to
    /// the pod that goes or has gone.
    pub(crate) fn concerns(&self, endpoint: std::net::Ipv4Addr, opened: Phase) -> bool {
        endpoint == server_pod(GONE) && opened <= Phase::Leaves && self.phase() > Phase::Serves
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
    cluster: &'a Cluster,
    arrivals: &'a Arc<Arrivals>,
    departure: &'a Departure,
    going: Option<Server>,
    others: Vec<Server>,
}

impl<'a> Leaving<'a> {
    pub(crate) fn start(
        world: &'a World,
        cluster: &'a Cluster,
        arrivals: &'a Arc<Arrivals>,
        departure: &'a Departure,
    ) -> Result<Self> {
        let mut leaving = Self {
            world,
            cluster,
            arrivals,
            departure,
            going: None,
            others: Vec::new(),
        };
        leaving.going = Some(leaving.serve(GONE, GONE)?);
        for pod in [STEADY, NOT_READY, TERMINATING] {
            let server = leaving.serve(pod, pod)?;
            leaving.others.push(server);
        }
        world.topology.unplug(World::index(SUCCESSOR))?;
        Ok(leaving)
    }

    /// Serves in the pod `pod`, which has the address of the pod `of`.
    fn serve(&self, pod: u8, of: u8) -> Result<Server> {
        self.world
            .serve(pod, of, Service::Leaving.bit(), self.arrivals)
    }

    /// Takes the next step if its time has come. `lived` is the time since the run's beginning.
    pub(crate) fn step(&mut self, running: &mut Running<'_>, lived: Duration) -> Result<()> {
        let topology = &self.world.topology;
        match self.departure.phase() {
            Phase::Serves if lived >= BEGIN => {
                // Clients ask it nothing more that must be answered.
                self.departure.set(Phase::Leaves);
                self.publish(running, Some(Condition::Terminating))?;
            }
            Phase::Leaves if lived >= BEGIN + STEP => {
                topology.unplug(World::index(GONE))?;
                self.departure.set(Phase::Gone(Instant::now()));
            }
            // KUBE: the endpoint is terminating until the pod object has gone, after the pod.
            Phase::Gone(at) if self.going.is_some() && at.elapsed() >= STEP => {
                self.going = None;
                self.publish(running, None)?;
            }
            Phase::Gone(at) if at.elapsed() >= VACANT => {
                topology.plug_as(World::index(SUCCESSOR), World::index(GONE))?;
                let server = self.serve(SUCCESSOR, GONE)?;
                self.others.push(server);
                self.publish(running, Some(Condition::Ready))?;
                self.departure.set(Phase::Replaced(at));
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
        self.cluster.set(Service::Leaving, all.collect());
        running.publish(Service::Leaving)
    }
}
