// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Addresses of both families, and services with them as plans.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use control::plan::{BackendPlan, FamilyPlan, FrontendPlan, PortPlan, ServicePlan};
use datapath::maps::family::Family;
use proxy_common::{EndpointSet, FrontendKind, Port, Protocol, ServiceFlags, V4, V6};

use crate::packets::at;

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

pub(crate) const IPV4: Addresses = Addresses {
    pod: ip4(10, 40, 1, 9),
    outsider: ip4(203, 0, 113, 9),
    backend: ip4(10, 40, 1, 10),
    other_backend: ip4(10, 40, 2, 10),
    cluster_ip: ip4(172, 30, 1, 1),
    other_cluster_ip: ip4(172, 30, 1, 2),
    balancer: ip4(198, 51, 100, 1),
    node: ip4(192, 168, 40, 2),
    other_node_address: ip4(192, 168, 41, 2),
};

pub(crate) const IPV6: Addresses = Addresses {
    pod: ip6([0xfd00, 0x40, 0, 1], 9),
    outsider: ip6([0x2001, 0xdb8, 0x113, 0], 9),
    backend: ip6([0xfd00, 0x40, 0, 1], 0x10),
    other_backend: ip6([0xfd00, 0x40, 0, 2], 0x10),
    cluster_ip: ip6([0xfd00, 0x30, 0, 0], 1),
    other_cluster_ip: ip6([0xfd00, 0x30, 0, 0], 2),
    balancer: ip6([0x2001, 0xdb8, 0x51, 0], 1),
    node: ip6([0xfd00, 0xc0, 0, 0], 2),
    other_node_address: ip6([0xfd00, 0xc0, 1, 0], 2),
};

const fn ip4(a: u8, b: u8, c: u8, d: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(a, b, c, d))
}

/// The address of a host in a network of 64 bits.
const fn ip6([a, b, c, d]: [u16; 4], host: u16) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, host))
}

impl Addresses {
    pub(crate) fn is_v6(&self) -> bool {
        self.node.is_ipv6()
    }
    /// The client in a pod.
    pub(crate) fn client(&self) -> SocketAddr {
        at(self.pod, 40_000)
    }
    pub(crate) fn outside_client(&self) -> SocketAddr {
        at(self.outsider, 40_000)
    }
    /// Where [`Service::web`] is served.
    pub(crate) fn service(&self) -> SocketAddr {
        at(self.cluster_ip, 80)
    }
    /// The backend of [`Service::web`].
    pub(crate) fn endpoint(&self) -> SocketAddr {
        at(self.backend, 8080)
    }
    /// The same endpoint and another one.
    pub(crate) fn endpoints(&self) -> [SocketAddr; 2] {
        [self.endpoint(), at(self.other_backend, 8080)]
    }
    /// The client in a pod, the service and its backend.
    pub(crate) fn ends(&self) -> (SocketAddr, SocketAddr, SocketAddr) {
        (self.client(), self.service(), self.endpoint())
    }
}

/// A service port under construction.
pub(crate) struct Service {
    pub(crate) name: &'static str,
    pub(crate) protocol: Protocol,
    /// Address (`None`: every one of the node's), port, kind, and further flags.
    pub(crate) frontends: Vec<(Option<IpAddr>, u16, FrontendKind, u32)>,
    pub(crate) backends: Vec<SocketAddr>,
    /// The weights of the first backends; all others have 1.
    pub(crate) weights: Vec<u32>,
    pub(crate) affinity: u32,
    pub(crate) sources: Vec<&'static str>,
}

impl Service {
    /// A service with port 80 over TCP at the cluster IP, and one backend.
    pub(crate) fn web(a: Addresses) -> Self {
        Self::over(Protocol::TCP, a)
    }
    /// The same over another protocol.
    pub(crate) fn over(protocol: Protocol, a: Addresses) -> Self {
        Self::cluster_ip("web", protocol, a.cluster_ip, &[a.endpoint()])
    }
    /// A service with port 80 at the cluster IP; its backends are in the cluster set.
    pub(crate) fn cluster_ip(
        name: &'static str,
        protocol: Protocol,
        address: IpAddr,
        backends: &[SocketAddr],
    ) -> Self {
        Self {
            name,
            protocol,
            frontends: vec![(Some(address), 80, FrontendKind::ClusterIp, 0)],
            backends: backends.to_vec(),
            weights: Vec::new(),
            affinity: 0,
            sources: Vec::new(),
        }
    }
    /// The same with other backends.
    pub(crate) fn backed_by(self, backends: &[SocketAddr]) -> Self {
        let backends = backends.to_vec();
        Self { backends, ..self }
    }
    pub(crate) fn at_node_port(mut self, port: u16) -> Self {
        self.frontends.push((None, port, FrontendKind::NodePort, 0));
        self
    }
    /// The plan that the planner would make of this service.
    pub(crate) fn plan(&self) -> ServicePlan {
        let [(guarded, ..), ..] = self.frontends[..] else {
            panic!("the first is the cluster IP")
        };
        let sources = self.sources.iter();
        ServicePlan {
            ports: vec![PortPlan {
                name: "".into(),
                protocol: self.protocol,
                port: Port::from_host(80),
                affinity_timeout: self.affinity,
                source_ranges: sources.map(|net| net.parse().expect("a range")).collect(),
                v4: self.family(),
                v6: self.family(),
            }],
            guarded_v4: guarded.and_then(V4::of_ip).into_iter().collect(),
            guarded_v6: guarded.and_then(V6::of_ip).into_iter().collect(),
            health_check: None,
        }
    }
    fn family<A: Family>(&self) -> FamilyPlan<A> {
        let weights = self.weights.iter().copied().chain(std::iter::repeat(1));
        let backends = self.backends.iter().zip(weights);
        let mut backends: Vec<_> = backends
            .filter_map(|(backend, weight)| {
                Some(BackendPlan {
                    address: A::of_ip(backend.ip())?,
                    port: Port::from_host(backend.port()),
                    sets: EndpointSet::CLUSTER,
                    weight,
                    local_weight: None,
                })
            })
            .collect();
        backends.sort();
        let frontends = self.frontends.iter();
        let frontends = frontends.filter_map(|(address, port, kind, flags)| {
            let flags = ServiceFlags(ServiceFlags::new(*kind).0 | flags)
                .with(ServiceFlags::HAS_ENDPOINTS, !self.backends.is_empty())
                .with(ServiceFlags::AFFINITY, self.affinity > 0);
            Some(FrontendPlan {
                address: address.map_or(Some(A::UNSPECIFIED), A::of_ip)?,
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
