// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Scenes that seldom happen by chance: a connection whose backend no longer serves, and a client
//! whose tuples are used by somebody behind another interface.

use proxy_common::EndpointSet;

use crate::{
    cluster,
    generate::{Conversation, Generator},
    model::wire::{TCP, Tuple, UDP},
    operations::Operation,
    packets::{Kind, at},
    services::{self, Interface, NodeSettings},
};

impl Generator {
    /// Makes an established connection, changes its service, and sends more SYNs and data.
    pub(crate) fn drain(&mut self) {
        self.begin();
        let Some(conversation) = self.conversations.last().copied() else {
            return;
        };
        self.answer(conversation, Kind::SynAck);
        self.send(conversation, Kind::Ack);
        let to = conversation.tuple.dst;
        let served = self.services.iter().position(|service| {
            let mut frontends = service.frontends.iter();
            service.protocol == conversation.tuple.protocol
                && frontends.any(|one| one.at.port() == to.port() && one.at.ip() == to.ip())
        });
        let Some(index) = served else {
            return;
        };
        let mut changed = cluster::changed(&self.services[index], &mut self.random);
        if self.random.one_in(2) {
            // Removes half of the backends, so that the connection's backend may be gone.
            let backends = &mut changed.backends;
            backends.drain(..backends.len() / 2);
            // All clients may use the remaining backends.
            for backend in backends {
                backend.sets.0 |= EndpointSet::CLUSTER.0;
                backend.weight = backend.weight.max(1);
            }
        }
        self.services[index] = changed.clone();
        self.operations.push(Operation::Apply(changed));
        let steps = self.random.pick(&[0, 0, 3, 6, 7]);
        if steps > 0 {
            self.operations.push(Operation::Wait(steps));
        }
        let follows = [Kind::Syn, Kind::Syn, Kind::Data, Kind::SynAck];
        for _ in 0..3 {
            let kind = self.random.pick(&follows);
            self.send(conversation, kind);
            let kind = self.random.pick(&follows[2..]);
            if self.random.one_in(2) {
                self.answer(conversation, kind);
            }
        }
    }
    /// Sends with a client's address from another interface, from all ports that it may be given.
    pub(crate) fn crowd(&mut self) {
        const PORTS: (u16, u16) = (5000, 5003);
        let v6 = self.v6;
        self.operations.push(Operation::Settings(NodeSettings {
            ports: PORTS,
            ..NodeSettings::default()
        }));
        let (protocol, dst) = self.destination();
        let kind = if protocol == UDP {
            Kind::Data
        } else {
            Kind::Syn
        };
        let address = services::pod(Interface::PodA, v6);
        let port = self.client_port();
        let other = self
            .random
            .pick(&[Interface::PodB, Interface::PodC, Interface::Uplink]);
        let talk = |interface, port| Conversation {
            interface,
            tuple: Tuple {
                protocol,
                src: at(address, port),
                dst,
            },
            sent: (0, 0),
        };
        let times = self.random.pick(&[1, 1, 3]);
        for port in (PORTS.0..=PORTS.1).chain([port]) {
            let forged = talk(other, port);
            self.conversations.push(forged);
            for _ in 0..times {
                self.send(forged, kind);
            }
            if protocol == TCP && self.random.one_in(12) {
                self.answer(forged, Kind::SynAck);
                self.send(forged, Kind::Ack);
            }
        }
        let own = talk(Interface::PodA, port);
        self.conversations.push(own);
        self.send(own, kind);
        self.answer(own, Kind::SynAck);
        self.send(own, Kind::Ack);
    }
}
