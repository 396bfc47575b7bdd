// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node with routes and neighbours, and the programs that run on it.

use std::net::SocketAddr;

use proxy_common::maps::interface;

use crate::{
    network::{Link, Network},
    packets::NODE_MAC,
    service::{Addresses, Service},
    world::{Context, Outcome, World},
};

/// The index of the interface on the outsiders' side.
pub(super) const OUTSIDE: u32 = 10;

/// The index of the interface to the pods.
pub(super) const PODS: u32 = 20;

/// A node with routes and neighbours, and the programs that run on it.
pub(super) struct Node {
    pub(super) network: Network,
    pub(super) world: World,
    pub(super) addresses: Addresses,
}

impl Node {
    pub(super) fn new(a: Addresses) -> Self {
        const HOST: [u8; 6] = [2, 0, 0, 0, 0, 9];
        let link = |name, index, hosts| Link {
            name,
            index,
            mac: NODE_MAC,
            hosts,
        };
        let network = Network::new(
            a,
            [
                link("outside", OUTSIDE, &[(a.outsider, HOST)]),
                link("pods", PODS, &[(a.pod, HOST), (a.backend, HOST)]),
            ],
        );
        let default = if a.is_v6() { "::/0" } else { "0.0.0.0/0" };
        network.ip(&format!("route add unreachable {default} metric 1\n"));
        let mut world = World::with(|options| options.redirects = true, &[Service::web(a)]);
        for index in [OUTSIDE, PODS] {
            world.set_interface(index, interface::REDIRECTS);
        }
        Self {
            network,
            world,
            addresses: a,
        }
    }

    /// Removes the backend's route or neighbour.
    pub(super) fn remove(&self, what: &str) {
        let backend = self.addresses.backend;
        self.network.ip(&format!("{what} del {backend} dev pods\n"));
    }

    /// The client in a pod.
    pub(super) fn client(&self) -> SocketAddr {
        self.addresses.client()
    }
    pub(super) fn backend(&self) -> SocketAddr {
        self.addresses.endpoint()
    }
    pub(super) fn service(&self) -> SocketAddr {
        self.addresses.service()
    }

    pub(super) fn ingress_by(&self, packet: &[u8], interface: u32, segment: u32) -> Outcome {
        let context = Context {
            interface,
            segment,
            ..Context::default()
        };
        self.network
            .enter(|| self.world.ingress_by(packet, context))
    }
    pub(super) fn egress(&self, packet: &[u8], interface: u32) -> Outcome {
        let context = Context {
            interface,
            ..Context::default()
        };
        self.network.enter(|| self.world.egress_by(packet, context))
    }
    pub(super) fn ingress(&self, packet: &[u8], interface: u32) -> Outcome {
        self.ingress_by(packet, interface, 0)
    }
}
