// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Generates what seldom happens by chance: fragments, ICMP errors, packets of no conversation and
//! of the node itself; a backend that no longer serves, and a client whose tuples others use;
//! numbers near the edges of a conversation's window, or far off.

use clap::ValueEnum;
use proxy_common::EndpointSet;

use crate::{
    cluster,
    errors::{About, Complaint, Error},
    generate::{Conversation, Generator},
    model::{
        life::{AHEAD, BEHIND},
        wire::{ICMP, ICMPV6, SCTP, TCP, Tuple, UDP},
    },
    operations::Operation,
    packets::{Kind, Packet, Shape, at},
    services::{self, Interface, NodeSettings},
};

/// The protocol GRE.
pub(crate) const GRE: u8 = 47;

impl Generator {
    /// Sends a datagram in fragments, sometimes in the wrong order or with one of them missing.
    pub(crate) fn fragments(&mut self) {
        let v6 = self.v6;
        let mut datagrams = self.conversations.clone();
        datagrams.retain(|one| one.tuple.protocol == UDP);
        if datagrams.is_empty() {
            return;
        }
        let Conversation {
            interface, tuple, ..
        } = self.random.pick(&datagrams);
        let id = self.random.below(6) as u16;
        let is_answer = self.random.one_in(2);
        let mut parts = vec![true, false];
        match self.random.below(6) {
            0 => parts.reverse(),
            1 => parts.truncate(1),
            2 => drop(parts.remove(0)),
            _ => {}
        }
        for is_first in parts {
            let shape = Shape {
                payload: 32,
                options: if v6 { 0 } else { self.random.pick(&[0, 0, 1]) },
                fragment: Some((id, is_first)),
                ..Shape::default()
            };
            let kind = Kind::Data;
            let packet = Packet { tuple, kind, shape };
            self.operations.push(match is_answer {
                true => Operation::Answer(interface, packet),
                false => Operation::Send(interface, packet),
            });
        }
    }
    /// Sends an echo request, or a packet of a protocol without service, mostly to a service.
    pub(crate) fn ping(&mut self) {
        let (interface, address) = self.client();
        let (_, dst) = self.destination();
        let icmp = if self.v6 { ICMPV6 } else { ICMP };
        let protocol = self.random.pick(&[icmp, icmp, GRE]);
        let tuple = Tuple::new(protocol, at(address, 0), at(dst.ip(), 0));
        let id = self.random.below(6) as u16;
        let shape = Shape {
            fragment: self.random.one_in(12).then_some((id, true)),
            ..self.shape(protocol)
        };
        self.push(interface, tuple, Kind::Data, shape);
    }
    pub(crate) fn complain(&mut self) {
        if self.conversations.is_empty() {
            return;
        }
        let conversation = self.random.pick(&self.conversations);
        let complaint = Complaint {
            error: self.random.pick(Error::value_variants()),
            about: self.random.pick(About::value_variants()),
            quote: self.random.pick(&[8, 8, 12, 20, 60]),
            tuple: conversation.tuple,
        };
        let complaint = Operation::Complain(conversation.interface, complaint);
        self.operations.push(complaint);
    }
    /// Sends a client's packet that belongs to no conversation.
    pub(crate) fn stray(&mut self) {
        let (interface, tuple) = self.anybody();
        let kinds = [Kind::Ack, Kind::SynAck, Kind::Fin, Kind::Rst, Kind::Data];
        let kind = self.random.pick(&kinds);
        let shape = self.shape(tuple.protocol);
        self.push(interface, tuple, kind, shape);
    }
    /// Sends a packet of no conversation out of the node, from a process of the node or forwarded.
    pub(crate) fn out(&mut self) {
        let v6 = self.v6;
        let ports = [30_080, 30_053, 30_080, 40_000];
        let src = at(services::node(v6), self.random.pick(&ports));
        let (_, peer) = self.client();
        let dst = at(peer, self.client_port());
        let protocol = self.random.pick(&[UDP, UDP, SCTP, TCP]);
        let tuple = Tuple::new(protocol, src, dst);
        let (kind, shape) = (Kind::Data, Shape::default());
        let is_own = !self.random.one_in(5);
        let packet = Packet { tuple, kind, shape };
        self.operations.push(Operation::Out(is_own, packet));
        // The node sends nothing to itself through an interface.
        if self.random.one_in(2) && !services::is_node(peer) {
            self.push(Interface::towards(peer), tuple.reversed(), kind, shape);
        }
    }

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
            service.protocol == conversation.tuple.protocol && frontends.any(|one| one.at == to)
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
        self.operations.push(Operation::Wait(steps));
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
        let kind = Kind::first(protocol);
        let address = services::pod(Interface::PodA, v6);
        let port = self.client_port();
        let others = [Interface::PodB, Interface::PodC, Interface::Uplink];
        let other = self.random.pick(&others);
        let from = |port| Tuple::new(protocol, at(address, port), dst);
        let times = self.random.pick(&[1, 1, 3]);
        for port in (PORTS.0..=PORTS.1).chain([port]) {
            let forged = self.converse(other, from(port));
            for _ in 0..times {
                self.send(forged, kind);
            }
            if protocol == TCP && self.random.one_in(12) {
                self.answer(forged, Kind::SynAck);
                self.send(forged, Kind::Ack);
            }
        }
        let own = self.converse(Interface::PodA, from(port));
        self.send(own, kind);
        self.answer(own, Kind::SynAck);
        self.send(own, Kind::Ack);
    }

    /// Makes client or backend of a conversation send some bytes, so that later numbers are higher.
    pub(crate) fn advance(&mut self, index: usize) {
        let bytes = self.random.pick(&[1, 1000, 70_000, AHEAD, AHEAD + 1]);
        let sent = &mut self.conversations[index].sent;
        let is_client = self.random.one_in(2);
        let side = if is_client { &mut sent.0 } else { &mut sent.1 };
        *side = side.wrapping_add(bytes);
    }
    /// Returns a random shape with numbers that fit to the bytes sent by the packet's sender
    /// (`own`) and by the other side.
    pub(crate) fn numbered(&mut self, protocol: u8, other_tag: i32, own: i32, other: i32) -> Shape {
        let shape = self.shape(protocol);
        let random = &mut self.random;
        let timestamp = match protocol {
            TCP => random.pick(&[0, 0, 1000, 2000, 0x8000_0700]),
            _ => 0,
        };
        let off = [-BEHIND - 1, -BEHIND, AHEAD, AHEAD + 1, 0x3000_0000];
        let mut near = |number: i32, often| match random.one_in(often) {
            true => number.wrapping_add(random.pick(&off)),
            false => number,
        };
        let (ahead, acked) = match protocol {
            TCP => (near(own, 5), near(other, 12)),
            SCTP => {
                let ahead = random.one_in(4).then(|| random.pick(&[other_tag, 1]));
                (ahead.unwrap_or(0), i32::from(random.one_in(8)))
            }
            _ => (0, 0),
        };
        Shape {
            ahead: ahead.into(),
            acked: acked.into(),
            timestamp,
            ..shape
        }
    }
}
