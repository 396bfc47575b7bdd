// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A connection that a test sends segment by segment, each with its numbers.

use std::net::SocketAddr;

use crate::{
    packets::{Tcp, numbered},
    service::Addresses,
    world::{Outcome, World},
};

#[derive(Clone, Copy)]
pub(crate) struct Connection {
    pub(crate) client: SocketAddr,
    pub(crate) service: SocketAddr,
    pub(crate) backend: SocketAddr,
}

impl Connection {
    /// A connection of the client in a pod to the service's only backend.
    pub(crate) fn new(a: Addresses) -> Self {
        let (client, service, backend) = a.ends();
        Self {
            client,
            service,
            backend,
        }
    }
    /// Sends a segment with this sequence and acknowledgement number.
    pub(crate) fn client_sends(&self, world: &World, flags: Tcp, numbers: (u32, u32)) -> Outcome {
        world.ingress(&numbered(self.client, self.service, flags, numbers, b""))
    }
    pub(crate) fn backend_sends(&self, world: &World, flags: Tcp, numbers: (u32, u32)) -> Outcome {
        let packet = numbered(self.backend, self.client, flags, numbers, b"");
        world.egress(&packet, false)
    }
    /// Opens the connection. The client's next number is 101, the backend's 7001.
    pub(crate) fn establish(mut self, world: &World) -> Self {
        self.backend = self.client_sends(world, Tcp::Syn, (100, 0)).dst();
        self.backend_sends(world, Tcp::SynAck, (7000, 101));
        self.client_sends(world, Tcp::Ack, (101, 7001));
        assert_eq!(self.state(world), "established");
        self
    }
    pub(crate) fn state(&self, world: &World) -> &'static str {
        world.state(self.client, self.service)
    }
}
