// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node between a client and a backend behind routers, with a client and a backend in pods as
//! well, in one address family. Every interface takes 1500 bytes; one link on the path is narrower.

use std::net::SocketAddr;

use lab::node::netns::NetNs;
use proxy_common::Counter;

use crate::{
    agent::Agent,
    routed::{NODE_PORT, PORT, Routed},
    world::{OF_V4, OF_V6},
};

/// The MTU of the narrow link, in bytes. IPv6 requires 1280 at least.
pub(super) const NARROW: u32 = 1400;

/// Rules like those of firewalls and CNIs: they drop every packet of a connection that the node's
/// stack does not know.
const STRICT: &str = "add table inet strict
add chain inet strict input { type filter hook input priority filter; }
add rule inet strict input ct state invalid drop
add chain inet strict forward { type filter hook forward priority filter; }
add rule inet strict forward ct state invalid drop
";

/// The path of a client's packets to the backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Through {
    /// From a process of the node, translated at its socket.
    NodeSocket,
    /// From a pod, translated at its socket.
    PodSocket,
    /// From a pod, translated packet by packet.
    PodPackets,
    /// From outside to a node port, masqueraded.
    Masquerade,
    /// From outside to a node port and on to a pod, with the client's own address.
    Preserved,
    /// From outside to a node port and on to a process of the node.
    ToNode,
}

impl Through {
    pub(super) const fn is_at_the_socket(self) -> bool {
        matches!(self, Self::NodeSocket | Self::PodSocket)
    }
    pub(super) const fn is_from_outside(self) -> bool {
        matches!(self, Self::Masquerade | Self::Preserved | Self::ToNode)
    }
}

/// The side of the node where the narrow link is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    Client,
    Backend,
}

/// The host that finds a packet too large and reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Where {
    /// The node itself.
    Node,
    /// A router behind the node.
    Router,
}

pub(super) struct World {
    _agent: Agent,
    routed: Routed,
    pub(super) through: Through,
    /// The address and port at which the backend serves.
    pub(super) backend: SocketAddr,
    /// The frontend that the client sends to.
    pub(super) service: SocketAddr,
}

impl World {
    pub(super) fn new(v6: bool, through: Through) -> Self {
        let routed = Routed::build(v6);
        let node = &routed.node;
        node.nft(STRICT);
        let [_, client_pod, backend_pod] = if v6 { OF_V6 } else { OF_V4 };
        node.join_pods([client_pod, backend_pod]);
        let backend = match through {
            Through::Preserved => backend_pod.parse().expect("an address"),
            Through::ToNode => routed.node_ip,
            _ => routed.backend_ip,
        };
        let web = routed.web(backend);
        let is_local = matches!(through, Through::Preserved | Through::ToNode);
        node.write(
            "web.yaml",
            if is_local {
                web.on("node-a").local()
            } else {
                web
            },
        );
        let agent = match through {
            Through::PodSocket => node.start(7),
            _ => node.start_by_packet(7, ""),
        };
        let service = if through.is_from_outside() {
            (routed.node_ip, NODE_PORT)
        } else {
            (routed.cluster_ip, 80)
        };
        let world = Self {
            _agent: agent,
            routed,
            through,
            backend: (backend, PORT).into(),
            service: service.into(),
        };
        for end in [world.client(), world.server()] {
            // Otherwise TCP finds the path MTU by probing, a few seconds later.
            end.set(&[("ipv4/tcp_mtu_probing", "0")])
                .expect("no probing");
        }
        world
    }

    /// Makes one link of a side narrow and the others wide; both ends forget their path MTU.
    pub(super) fn narrow(&self, side: Side, at: Where) {
        let routed = &self.routed;
        for (one, way) in [
            (Side::Client, &routed.clients),
            (Side::Backend, &routed.backends),
        ] {
            for (link, there) in [(0, Where::Node), (1, Where::Router)] {
                let mtu = if (one, there) == (side, at) {
                    NARROW
                } else {
                    1500
                };
                way.set_mtu(routed.node.node(), link, mtu).expect("links");
            }
        }
        self.forget();
    }

    fn client(&self) -> &NetNs {
        match self.through {
            Through::NodeSocket => self.routed.node.node(),
            Through::PodSocket | Through::PodPackets => self.routed.node.client(),
            _ => self.routed.clients.host(),
        }
    }

    fn server(&self) -> &NetNs {
        match self.through {
            Through::Preserved => self.routed.node.server(),
            Through::ToNode => self.routed.node.node(),
            _ => self.routed.backends.host(),
        }
    }

    /// Does some work in the client's network namespace; sockets made there stay there.
    pub(super) fn at_the_client<T>(&self, work: impl FnOnce() -> T) -> T {
        let enter = || self.client().enter(work).expect("enter the namespace");
        if self.through.is_from_outside() {
            return enter();
        }
        let done = self.routed.node.cgroup().inside(enter);
        done.expect("enter the cgroup")
    }

    /// Does some work in the backend's network namespace.
    pub(super) fn at_the_backend<T>(&self, work: impl FnOnce() -> T) -> T {
        self.server().enter(work).expect("enter the host")
    }

    /// Makes both ends forget their path MTU.
    fn forget(&self) {
        for end in [self.client(), self.server()] {
            for family in ["-4", "-6"] {
                let flushed = end.feed("ip", &[family, "route", "flush", "cache"], "");
                flushed.expect("routes without exceptions");
            }
        }
    }

    pub(super) fn count(&self, counter: Counter) -> u64 {
        self.routed.node.count(counter)
    }
}
