// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Addresses of both families, and services with them.

use std::{
    net::{IpAddr, SocketAddr},
    sync::LazyLock,
};

use proxy_common::{EndpointSet, FrontendKind, Protocol};

pub(crate) use crate::services::Service;
use crate::{
    packets::at,
    services::{Backend, Frontend, Interface, node, other_node_address, outsider, pick, pod},
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

pub(crate) static IPV4: LazyLock<Addresses> = LazyLock::new(|| Addresses::of(false));
pub(crate) static IPV6: LazyLock<Addresses> = LazyLock::new(|| Addresses::of(true));

impl Addresses {
    fn of(v6: bool) -> Self {
        Self {
            pod: pod(Interface::PodA, v6),
            outsider: outsider(9, v6),
            backend: pod(Interface::PodB, v6),
            other_backend: pod(Interface::Uplink, v6),
            cluster_ip: pick(v6, "172.30.1.1", "fd00:30::1"),
            other_cluster_ip: pick(v6, "172.30.1.2", "fd00:30::2"),
            balancer: pick(v6, "198.51.100.1", "2001:db8:51::1"),
            node: node(v6),
            other_node_address: other_node_address(v6),
        }
    }
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
