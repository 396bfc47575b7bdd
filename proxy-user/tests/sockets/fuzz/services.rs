// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The services of the model, and what becomes of a message to an address from a process on the
//! node or in a pod: see "At the socket" in ARCHITECTURE.md.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, SocketAddr},
};

use super::operations::is_udp;
use crate::{
    service::{Endpoint, Service},
    world::{From, NODE, NODE6, PORT},
};

/// The server pods, by the last number of their addresses.
pub(crate) const PODS: [u8; 3] = [20, 21, 22];

/// An endpoint of a service. `incarnation` changes when a removed endpoint is added again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Backend {
    pub(crate) service: u8,
    pub(crate) pod: u8,
    incarnation: u64,
}

/// What becomes of a connection or datagram to an address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// One of these backends gets it.
    Served(Vec<Backend>),
    Refused,
    Dropped,
    /// No service has the address; the number is that of a pod that has it.
    Untouched(Option<u8>),
    /// An endpoint on another node may get the message; as it does not exist, the result is open.
    Unclear,
}

/// A service, and the backend of each of its endpoints.
struct Live {
    service: Service,
    backends: Vec<Backend>,
}

/// The services. `held`: the backends of session affinity, by service, client's place, and IPv6.
#[derive(Default)]
pub(crate) struct Services {
    live: BTreeMap<u8, Live>,
    pub held: HashMap<(u8, From, bool), Backend>,
    incarnations: u64,
}

/// Returns the pod (last number of its address) that serves at this address and port; else None.
pub(crate) fn pod_at(address: SocketAddr) -> Option<u8> {
    let pods = PODS.into_iter();
    let mut pods = pods.filter(|last| pod(*last, address.is_ipv6()) == address.ip());
    pods.next().filter(|_| address.port() == PORT)
}

pub(crate) fn pod(last: u8, v6: bool) -> IpAddr {
    let net = if v6 { "fd00:40:0:1::" } else { "10.40.1." };
    ip(&format!("{net}{last}"))
}

pub(crate) fn cluster_ip(number: u8, v6: bool) -> IpAddr {
    let net = if v6 { "fd00:30::" } else { "172.30.0." };
    ip(&format!("{net}{number}"))
}

pub(crate) fn node(v6: bool) -> IpAddr {
    ip(if v6 { NODE6 } else { NODE })
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

impl Services {
    /// Adds or replaces a service.
    pub(crate) fn apply(&mut self, service: &Service) {
        let number = service.number;
        let before = self.live.remove(&number);
        let before = before.map(|live| live.backends).unwrap_or_default();
        let backend = |Endpoint { pod, .. }: &Endpoint| {
            self.incarnations += 1;
            let known = before.iter().find(|one| one.pod == *pod).copied();
            known.unwrap_or(Backend {
                service: number,
                pod: *pod,
                incarnation: self.incarnations,
            })
        };
        let live = Live {
            backends: service.endpoints.iter().map(backend).collect(),
            service: service.clone(),
        };
        self.live.insert(number, live);
    }
    pub(crate) fn remove(&mut self, number: u8) {
        self.live.remove(&number);
    }
    pub(crate) fn all(&self) -> Vec<Service> {
        let live = self.live.values();
        live.map(|live| live.service.clone()).collect()
    }
    /// Returns true if the backend still serves its service.
    pub(crate) fn serves(&self, backend: Backend) -> bool {
        let live = self.live.get(&backend.service);
        live.is_some_and(|live| live.backends.contains(&backend))
    }
    /// Returns the service that has the cluster IP `to`, even if it does not have the port.
    fn of_cluster_ip(&self, to: SocketAddr) -> Option<u8> {
        let mut numbers = self.live.keys().copied();
        numbers.find(|number| cluster_ip(*number, to.is_ipv6()) == to.ip())
    }
    /// Returns the service with node port `to`, if a process of `place` reaches it there.
    fn of_node_port(&self, place: From, to: SocketAddr, udp: bool) -> Option<u8> {
        let own = to.ip() == node(to.is_ipv6());
        let loopback = place == From::Node && to.is_ipv4() && to.ip().is_loopback();
        let mut numbers = self.live.keys().copied();
        let found = numbers.find(|number| u16::from(*number) + 30_000 == to.port());
        found.filter(|number| (own || loopback) && is_udp(*number) == udp)
    }
    /// Returns the service that has this cluster IP and port, or this node port; None if none has.
    pub(crate) fn service(&self, place: From, to: SocketAddr, udp: bool) -> Option<u8> {
        let served = |number: &u8| to.port() == 80 && is_udp(*number) == udp;
        match self.of_cluster_ip(to) {
            Some(number) => Some(number).filter(served),
            None => self.of_node_port(place, to, udp),
        }
    }
    /// Returns what becomes of a message to the address. `held`: session affinity is considered.
    pub(crate) fn fate(&self, place: From, to: SocketAddr, udp: bool, held: bool) -> Fate {
        let Some(number) = self.service(place, to, udp) else {
            return match self.of_cluster_ip(to) {
                Some(_) => Fate::Refused,
                None => Fate::Untouched(pod_at(to)),
            };
        };
        let Live { service, backends } = &self.live[&number];
        let has_far = service.far && to.is_ipv4();
        // New connections and clients get those with a weight.
        let all = backends.iter().zip(&service.endpoints);
        let chosen = all.filter(|(_, endpoint)| endpoint.weight > 0);
        let chosen: Vec<_> = chosen.map(|(backend, _)| *backend).collect();
        if chosen.is_empty() && !has_far {
            return Fate::Refused;
        }
        let is_node_port = to.port() != 80;
        if has_far && is_node_port {
            return Fate::Unclear;
        }
        if chosen.is_empty() {
            return Fate::Dropped;
        }
        let key = (number, place, to.is_ipv6());
        let client = self.held.get(&key).filter(|_| held && service.affinity);
        if let Some(backend) = client.filter(|backend| self.serves(**backend)) {
            return Fate::Served(vec![*backend]);
        }
        Fate::Served(chosen)
    }
    /// Returns all backends of the service with this number, also those of weight 0.
    pub(crate) fn backends(&self, number: u8) -> Vec<Backend> {
        self.live[&number].backends.clone()
    }
    pub(crate) fn has_affinity(&self, number: u8) -> bool {
        let live = self.live.get(&number);
        live.is_some_and(|live| live.service.affinity)
    }
    /// Records the client's backend, if the service has session affinity.
    pub(crate) fn hold(&mut self, place: From, to: SocketAddr, backend: Backend) {
        if self.has_affinity(backend.service) {
            let key = (backend.service, place, to.is_ipv6());
            self.held.insert(key, backend);
        }
    }
}
