// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The addresses of all hosts, and the Kubernetes objects that name them.

use std::net::{IpAddr, SocketAddr};

use crate::objects::{self, endpoint, node_with};

/// The port at which pods serve.
const PORT: u16 = 8080;
/// The address ranges of the pods of both nodes.
pub(super) const CLUSTER: &str = "10.40.0.0/16,10.41.0.0/16,fd00:40::/32,fd00:41::/32";

/// The purpose of a network; each lane has its own network for each purpose.
#[derive(Clone, Copy)]
pub(super) enum Network {
    /// Between the node and the client outside.
    Uplink,
    /// Between the client, which is the router there, and the other node.
    Beyond,
    /// Between the ends of the tunnel.
    Tunnel,
    NearPod,
    FarPod,
    Services,
}

/// An address in one of a lane's networks.
pub(super) fn address(network: Network, v6: bool, lane: u8, last: u8) -> IpAddr {
    let (v4, in_v6) = match network {
        Network::Uplink => ("10.10", "fd00:10"),
        Network::Beyond => ("10.20", "fd00:20"),
        Network::Tunnel => ("10.42", "fd00:42"),
        Network::NearPod => ("10.40", "fd00:40"),
        Network::FarPod => ("10.41", "fd00:41"),
        Network::Services => ("172.30", "fd00:30"),
    };
    let text = if v6 {
        format!("{in_v6}:0:{lane}::{last}")
    } else {
        format!("{v4}.{lane}.{last}")
    };
    text.parse().expect("an address")
}

/// The node on which a backend is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Backend {
    Near,
    Far,
}

/// One service of one address family.
#[derive(Clone, Copy)]
pub(super) struct Service {
    pub(super) lane: u8,
    pub(super) v6: bool,
    pub(super) backend: Backend,
}

impl Service {
    fn number(self) -> u8 {
        1 + u8::from(self.backend == Backend::Far)
    }

    fn port_of_node(self) -> u16 {
        30_000 + u16::from(self.lane) * 10 + u16::from(self.number()) + 2 * u16::from(self.v6)
    }

    /// The cluster IP and port of the service.
    pub(super) fn inside(self) -> SocketAddr {
        let ip = address(Network::Services, self.v6, self.lane, self.number());
        SocketAddr::new(ip, 80)
    }

    /// The address of the node and the node port of the service.
    pub(super) fn outside(self) -> SocketAddr {
        let ip = address(Network::Uplink, self.v6, self.lane, 1);
        SocketAddr::new(ip, self.port_of_node())
    }

    /// The address and port of the backend.
    pub(super) fn served_at(self) -> SocketAddr {
        let network = match self.backend {
            Backend::Near => Network::NearPod,
            Backend::Far => Network::FarPod,
        };
        SocketAddr::new(address(network, self.v6, self.lane, 10), PORT)
    }

    /// The service and its endpoint.
    pub(super) fn objects(self) -> objects::Service {
        let family = if self.v6 { "ipv6" } else { "ipv4" };
        let place = match self.backend {
            Backend::Near => "near",
            Backend::Far => "far",
        };
        let name = format!("{place}-{}-{family}", self.lane);
        let node_port = Some(self.port_of_node());
        let service = objects::Service::new(&name, &self.inside().ip().to_string())
            .ports(&[("tcp", "TCP", 80, node_port), ("udp", "UDP", 80, node_port)])
            .endpoints(vec![endpoint(&self.served_at().ip().to_string())]);
        match self.backend {
            Backend::Near => service.local(),
            Backend::Far => service.on("node-b"),
        }
    }
}

/// The manifest of the node on which the agent runs.
pub(super) fn node_object() -> String {
    let both = [false, true].map(|v6| address(Network::Uplink, v6, 1, 1));
    node_with(&both, Some(7))
}
