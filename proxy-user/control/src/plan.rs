// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The plan: the contents of the maps for one service, as plain values. Made by `planner`, applied
//! by `datapath`; nothing else passes between the two.

use std::sync::Arc;

use ipnet::IpNet;
use proxy_common::{Addr, EndpointSet, Port, Protocol, ServiceFlags, V4, V6};

use crate::object::ObjectName;

/// The intended contents of the maps for one service. An empty plan (no port) removes the service
/// from the maps.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ServicePlan {
    pub ports: Vec<PortPlan>,
    /// The service's cluster IPs. Packets to a port of them that is not served are rejected. Left
    /// out are cluster IPs that are the node's own addresses or belong to another service.
    pub guarded_v4: Vec<V4>,
    pub guarded_v6: Vec<V6>,
    pub health_check: Option<HealthCheckPlan>,
    /// How many endpoints are ready, on this node and on others: those of the port and IP family
    /// that have most. For metrics only.
    pub ready: [usize; 2],
}

impl ServicePlan {
    /// Returns for whom a Local policy finds endpoints only on other nodes: inside clients by IPv4
    /// and by IPv6, then outside clients by IPv4 and by IPv6. KUBE: for the metric
    /// `sync_proxy_rules_no_local_endpoints_total`.
    pub fn lacks_local_endpoints(&self) -> [bool; 4] {
        let of_policy = |flag| {
            let ports = || self.ports.iter();
            [
                ports().any(|port| port.v4.lacks_local(flag)),
                ports().any(|port| port.v6.lacks_local(flag)),
            ]
        };
        let [a, b] = of_policy(ServiceFlags::INTERNAL_BLOCK_LOCAL);
        let [c, d] = of_policy(ServiceFlags::EXTERNAL_BLOCK_LOCAL);
        [a, b, c, d]
    }

    /// Whether any endpoint of a set has another weight than 1.
    pub fn is_weighted(&self) -> bool {
        let mut ports = self.ports.iter();
        ports.any(|port| port.v4.is_weighted() || port.v6.is_weighted())
    }
}

/// A service, and what its health check node port now answers; None if the service has no such
/// port (any more).
pub type HealthUpdate = (ObjectName, Option<HealthCheckPlan>);

/// The health check node port of a service. KUBE: `healthCheckNodePort` with
/// `externalTrafficPolicy: Local`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HealthCheckPlan {
    /// In host byte order.
    pub port: u16,
    /// Number of ready endpoints on this node. The HTTP status is 503 if this is 0, else 200.
    pub local_endpoints: usize,
}

/// One port of a service, for IPv4 and IPv6. It has one service id in the maps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortPlan {
    /// Empty for the only port of a service without port names.
    pub name: Arc<str>,
    pub protocol: Protocol,
    pub port: Port,
    /// How long a client keeps its backend, in seconds; 0 without session affinity.
    pub affinity_timeout: u32,
    /// KUBE: `loadBalancerSourceRanges`. They restrict only frontends with the flag SOURCE_RANGES.
    pub source_ranges: Vec<IpNet>,
    pub v4: FamilyPlan<V4>,
    pub v6: FamilyPlan<V6>,
}

/// The IPv4 part or the IPv6 part of a service port's plan.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FamilyPlan<A: Addr> {
    pub frontends: Vec<FrontendPlan<A>>,
    /// Every serving endpoint, even if no endpoint set contains it, sorted by address and port,
    /// without duplicates.
    pub backends: Vec<BackendPlan<A>>,
}

impl<A: Addr> FamilyPlan<A> {
    fn is_weighted(&self) -> bool {
        let mut backends = self.backends.iter();
        backends.any(|backend| {
            backend.sets != EndpointSet::NONE
                && (backend.weight != 1 || backend.local_weight.is_some())
        })
    }
    fn lacks_local(&self, policy: u32) -> bool {
        !self.backends.is_empty()
            && self
                .frontends
                .iter()
                .any(|frontend| frontend.flags.has(policy))
            && !self.backends.iter().any(|backend| {
                backend.sets.intersects(EndpointSet::LOCAL)
                    && backend.weight_in(EndpointSet::LOCAL) > 0
            })
    }
}

/// One frontend of a service port: an address and port, or a node port on all its addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrontendPlan<A: Addr> {
    /// [`Addr::UNSPECIFIED`] for a node port.
    pub address: A,
    pub port: Port,
    /// Kind, policies and options. They decide which endpoints new connections get, by client:
    /// those of the whole cluster or only the local ones ([`ServiceFlags::set_of_block`]).
    pub flags: ServiceFlags,
}

/// One endpoint of a service port.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct BackendPlan<A: Addr> {
    pub address: A,
    pub port: Port,
    /// Which frontends may use the backend. With weight 0, only for clients that it has already.
    pub sets: EndpointSet,
    /// The backend's share of new connections, compared with the other backends of a set; 1 if
    /// nobody has given it a weight.
    pub weight: u32,
    /// Its share in the local set, if that is another one.
    pub local_weight: Option<u32>,
}

impl<A: Addr> BackendPlan<A> {
    /// Returns the backend's share of new connections in a set.
    pub fn weight_in(&self, set: EndpointSet) -> u32 {
        let local = self.local_weight.filter(|_| set == EndpointSet::LOCAL);
        local.unwrap_or(self.weight)
    }
}
