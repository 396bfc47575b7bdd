// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Addresses of both families, and services with them as plans.

use std::net::{IpAddr, SocketAddr};

use control::plan::{BackendPlan, FamilyPlan, FrontendPlan, PortPlan, ServicePlan};
use proxy_common::{Addr, EndpointSet, FrontendKind, Port, Protocol, ServiceFlags, V4, V6};

/// The addresses of one family.
#[derive(Clone, Copy)]
pub(crate) struct Addresses {
    pub(crate) pod: IpAddr,
    pub(crate) outsider: IpAddr,
    pub(crate) backend: IpAddr,
    pub(crate) other_backend: IpAddr,
    pub(crate) cluster_ip: IpAddr,
    pub(crate) other_cluster_ip: IpAddr,
    pub(crate) balancer: IpAddr,
    pub(crate) node: IpAddr,
    pub(crate) other_node_address: IpAddr,
}

impl Addresses {
    pub(crate) fn of(v6: bool) -> Self {
        let pick =
            |v4: &str, v6_text: &str| (if v6 { v6_text } else { v4 }).parse().expect("an address");
        Self {
            pod: pick("10.40.1.9", "fd00:40:0:1::9"),
            outsider: pick("203.0.113.9", "2001:db8:113::9"),
            backend: pick("10.40.1.10", "fd00:40:0:1::10"),
            other_backend: pick("10.40.2.10", "fd00:40:0:2::10"),
            cluster_ip: pick("172.30.1.1", "fd00:30::1"),
            other_cluster_ip: pick("172.30.1.2", "fd00:30::2"),
            balancer: pick("198.51.100.1", "2001:db8:51::1"),
            node: pick("192.168.40.2", "fd00:c0::2"),
            other_node_address: pick("192.168.41.2", "fd00:c0:1::2"),
        }
    }
}

/// A service port under construction.
pub(crate) struct Service {
    pub(crate) name: &'static str,
    pub(crate) protocol: Protocol,
    pub(crate) frontends: Vec<(Option<IpAddr>, u16, FrontendKind, u32)>,
    pub(crate) backends: Vec<(SocketAddr, EndpointSet)>,
    pub(crate) affinity: u32,
    pub(crate) sources: Vec<&'static str>,
}

impl Service {
    /// A service with port 80 over TCP at the cluster IP, and one backend.
    pub(crate) fn web(a: Addresses) -> Self {
        let backends = [SocketAddr::new(a.backend, 8080)];
        Self::cluster_ip("web", Protocol::TCP, a.cluster_ip, &backends)
    }
    /// A service with port 80 at the cluster IP; its backends are in the cluster set.
    pub(crate) fn cluster_ip(
        name: &'static str,
        protocol: Protocol,
        address: IpAddr,
        backends: &[SocketAddr],
    ) -> Self {
        let frontend = (Some(address), 80, FrontendKind::ClusterIp, 0);
        let backends = backends
            .iter()
            .map(|backend| (*backend, EndpointSet::CLUSTER))
            .collect();
        Self {
            name,
            protocol,
            frontends: vec![frontend],
            backends,
            affinity: 0,
            sources: Vec::new(),
        }
    }
    pub(crate) fn with(
        mut self,
        address: Option<IpAddr>,
        port: u16,
        kind: FrontendKind,
        flags: u32,
    ) -> Self {
        self.frontends.push((address, port, kind, flags));
        self
    }
    /// The plan that the planner would make of this service.
    pub(crate) fn plan(&self) -> ServicePlan {
        let guards = self
            .frontends
            .iter()
            .filter(|(_, _, kind, _)| *kind == FrontendKind::ClusterIp);
        let guards: Vec<_> = guards.filter_map(|(address, ..)| *address).collect();
        ServicePlan {
            ports: vec![PortPlan {
                name: "".into(),
                protocol: self.protocol,
                port: Port::from_host(80),
                affinity_timeout: self.affinity,
                source_ranges: self
                    .sources
                    .iter()
                    .map(|net| net.parse().expect("a range"))
                    .collect(),
                v4: self.family(v4),
                v6: self.family(v6),
            }],
            guarded_v4: guards.iter().filter_map(|address| v4(*address)).collect(),
            guarded_v6: guards.iter().filter_map(|address| v6(*address)).collect(),
            health_check: None,
        }
    }
    fn family<A: Addr>(&self, of: fn(IpAddr) -> Option<A>) -> FamilyPlan<A> {
        let mut backends: Vec<_> = self
            .backends
            .iter()
            .filter_map(|(backend, sets)| {
                let port = Port::from_host(backend.port());
                Some(BackendPlan {
                    address: of(backend.ip())?,
                    port,
                    sets: *sets,
                })
            })
            .collect();
        backends.sort();
        let frontends = self
            .frontends
            .iter()
            .filter_map(|(address, port, kind, flags)| {
                let address = address.map_or(Some(A::UNSPECIFIED), of)?;
                let flags = ServiceFlags(ServiceFlags::new(*kind).0 | flags)
                    .with(ServiceFlags::HAS_ENDPOINTS, !self.backends.is_empty())
                    .with(ServiceFlags::AFFINITY, self.affinity > 0);
                Some(FrontendPlan {
                    address,
                    port: Port::from_host(*port),
                    flags,
                })
            });
        FamilyPlan {
            frontends: frontends.collect(),
            backends,
        }
    }
}

pub(crate) fn v4(address: IpAddr) -> Option<V4> {
    match address {
        IpAddr::V4(address) => Some(address.into()),
        IpAddr::V6(_) => None,
    }
}

pub(crate) fn v6(address: IpAddr) -> Option<V6> {
    match address {
        IpAddr::V6(address) => Some(address.into()),
        IpAddr::V4(_) => None,
    }
}
