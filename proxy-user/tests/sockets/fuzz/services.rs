// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The destination of an address, as a process on the node or in a pod sees it: ARCHITECTURE.md,
//! "At the socket".

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, SocketAddr},
};

use super::operations::Wanted;
use crate::world::{From, NODE, PORT};

/// The node's IPv6 address.
pub(crate) const NODE6: &str = "fd00:c0::2";
/// The last numbers of the addresses of the server pods.
pub(crate) const PODS: [u8; 3] = [20, 21, 22];

/// An endpoint of a service, from the time when it begins to serve until it stops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Backend {
    pub(crate) service: u8,
    pub(crate) pod: u8,
    incarnation: u64,
}

/// The result of a connection or datagram to an address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// One of these backends gets it.
    Served(Vec<Backend>),
    Refused,
    Dropped,
    /// The address belongs to no service; it may be a pod's own.
    Untouched(Option<u8>),
    /// A backend on another node, which does not exist, may get it.
    Unclear,
}

struct Live {
    wanted: Wanted,
    incarnations: BTreeMap<u8, u64>,
}

/// The services, and the backend that affinity holds each client to.
#[derive(Default)]
pub(crate) struct Services {
    live: BTreeMap<u8, Live>,
    pub held: HashMap<(u8, From, bool), Backend>,
    incarnations: u64,
}

/// Returns an IPv4-mapped address as IPv4.
pub(crate) fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Returns the pod that has the address.
pub(crate) fn pod_at(address: SocketAddr) -> Option<u8> {
    let pods = PODS.into_iter();
    let mut pods = pods.filter(|last| pod(*last, address.is_ipv6()) == address.ip());
    pods.next().filter(|_| address.port() == PORT)
}

pub(crate) fn pod(last: u8, v6: bool) -> IpAddr {
    let text = if v6 {
        format!("fd00:40:0:1::{last}")
    } else {
        format!("10.40.1.{last}")
    };
    text.parse().expect("an address")
}

pub(crate) fn cluster_ip(number: u8, v6: bool) -> IpAddr {
    let text = if v6 {
        format!("fd00:30::{number}")
    } else {
        format!("172.30.0.{number}")
    };
    text.parse().expect("an address")
}

pub(crate) fn node(v6: bool) -> IpAddr {
    let text = if v6 { NODE6 } else { NODE };
    text.parse().expect("an address")
}

impl Services {
    pub(crate) fn apply(&mut self, wanted: &Wanted) {
        let before = self.live.remove(&wanted.number);
        let before = before.map(|live| live.incarnations).unwrap_or_default();
        let mut incarnations = BTreeMap::new();
        for pod in &wanted.endpoints {
            self.incarnations += 1;
            let incarnation = before.get(pod).copied().unwrap_or(self.incarnations);
            incarnations.insert(*pod, incarnation);
        }
        let live = Live {
            wanted: wanted.clone(),
            incarnations,
        };
        self.live.insert(wanted.number, live);
    }
    pub(crate) fn remove(&mut self, number: u8) {
        self.live.remove(&number);
    }
    pub(crate) fn all(&self) -> impl Iterator<Item = &Wanted> {
        self.live.values().map(|live| &live.wanted)
    }
    /// Returns whether the backend still serves.
    pub(crate) fn serves(&self, backend: Backend) -> bool {
        self.live
            .get(&backend.service)
            .is_some_and(|live| live.incarnations.get(&backend.pod) == Some(&backend.incarnation))
    }
    /// Returns the service that has the cluster IP, whether or not it serves the port.
    fn of_cluster_ip(&self, to: SocketAddr) -> Option<u8> {
        let mut numbers = self.live.keys();
        let found = numbers.find(|number| cluster_ip(**number, to.is_ipv6()) == to.ip());
        found.copied()
    }
    /// Returns the service that has the node port.
    fn of_node_port(&self, place: From, to: SocketAddr, udp: bool) -> Option<u8> {
        let own = to.ip() == node(to.is_ipv6());
        let loopback = place == From::Node && to.is_ipv4() && to.ip().is_loopback();
        let mut numbers = self.live.keys().copied();
        let found = numbers.find(|number| u16::from(*number) + 30_000 == to.port());
        found.filter(|number| (own || loopback) && Wanted::is_udp(*number) == udp)
    }
    /// Returns the service that serves the address.
    pub(crate) fn service(&self, place: From, to: SocketAddr, udp: bool) -> Option<u8> {
        let served = |number: &u8| to.port() == 80 && Wanted::is_udp(*number) == udp;
        match self.of_cluster_ip(to) {
            Some(number) => Some(number).filter(served),
            None => self.of_node_port(place, to, udp),
        }
    }
    /// Returns the result for a socket that sends to the address; `held` says whether affinity
    /// applies.
    pub(crate) fn fate(&self, place: From, to: SocketAddr, udp: bool, held: bool) -> Fate {
        let Some(number) = self.service(place, to, udp) else {
            return match self.of_cluster_ip(to) {
                Some(_) => Fate::Refused,
                None => Fate::Untouched(pod_at(to)),
            };
        };
        let wanted = &self.live[&number].wanted;
        let has_far = wanted.far && to.is_ipv4();
        if wanted.endpoints.is_empty() && !has_far {
            return Fate::Refused;
        }
        let is_node_port = to.port() != 80;
        if has_far && is_node_port {
            return Fate::Unclear;
        }
        if wanted.endpoints.is_empty() {
            return Fate::Dropped;
        }
        let key = (number, place, to.is_ipv6());
        let client = self.held.get(&key).filter(|_| held && wanted.affinity);
        if let Some(backend) = client.filter(|backend| self.serves(**backend)) {
            return Fate::Served(vec![*backend]);
        }
        Fate::Served(self.backends(number))
    }
    /// Returns all backends of a service.
    pub(crate) fn backends(&self, number: u8) -> Vec<Backend> {
        let incarnations = self.live[&number].incarnations.iter();
        let backends = incarnations.map(|(pod, incarnation)| Backend {
            service: number,
            pod: *pod,
            incarnation: *incarnation,
        });
        backends.collect()
    }
    pub(crate) fn has_affinity(&self, number: u8) -> bool {
        self.live
            .get(&number)
            .is_some_and(|live| live.wanted.affinity)
    }
    /// Records the backend that a client has got, if the service has affinity.
    pub(crate) fn hold(&mut self, place: From, to: SocketAddr, backend: Backend) {
        if self.has_affinity(backend.service) {
            let key = (backend.service, place, to.is_ipv6());
            self.held.insert(key, backend);
        }
    }
}
