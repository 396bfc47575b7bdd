// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Addresses of both families, and services with them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use proxy_common::{EndpointSet, FrontendKind, Protocol};

pub(crate) use crate::services::Service;
use crate::{
    packets::at,
    services::{Backend, Frontend, pick},
};

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
        name: &str,
        protocol: Protocol,
        address: IpAddr,
        backends: &[SocketAddr],
    ) -> Self {
        let service = Self {
            name: name.into(),
            protocol: protocol.0,
            ..Self::default()
        };
        let service = service.backed_by(backends);
        service.served_at(FrontendKind::ClusterIp, at(address, 80))
    }
    /// The same with other backends.
    pub(crate) fn backed_by(self, backends: &[SocketAddr]) -> Self {
        let sets = EndpointSet::CLUSTER;
        let backends = backends.iter().map(|&at| Backend {
            at,
            sets,
            weight: 1,
        });
        let backends = backends.collect();
        Self { backends, ..self }
    }
    pub(crate) fn served_at(mut self, kind: FrontendKind, at: SocketAddr) -> Self {
        let local = false;
        self.frontends.push(Frontend { kind, at, local });
        self
    }
    pub(crate) fn at_node_port(self, port: u16) -> Self {
        let any = pick(self.frontends[0].at.is_ipv6(), "0.0.0.0", "::");
        self.served_at(FrontendKind::NodePort, at(any, port))
    }
}
