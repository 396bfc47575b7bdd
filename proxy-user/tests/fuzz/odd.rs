// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Generates packets outside of usual conversations: fragments, ICMP errors, packets of no
//! conversation and packets of the node itself.

use std::net::IpAddr;

use crate::{
    errors::{About, Complaint, Error},
    generate::{Conversation, Generator},
    model::wire::{ICMP, ICMPV6, SCTP, TCP, Tuple, UDP},
    operations::Operation,
    packets::{Kind, Packet, Shape, at},
    services::{self, Interface},
};

/// The protocol GRE.
const GRE: u8 = 47;

impl Generator {
    /// Sends a datagram in fragments, sometimes in the wrong order or with one of them missing.
    pub(crate) fn fragments(&mut self) {
        let v6 = self.v6;
        let conversations = self.conversations.iter();
        let datagrams: Vec<_> = conversations
            .filter(|one| one.tuple.protocol == UDP)
            .collect();
        if datagrams.is_empty() {
            return;
        }
        let Conversation {
            interface, tuple, ..
        } = *self.random.pick(&datagrams);
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
            let packet = Packet {
                tuple,
                kind: Kind::Data,
                shape,
            };
            self.operations.push(if is_answer {
                Operation::Answer(interface, packet)
            } else {
                Operation::Send(interface, packet)
            });
        }
    }
    /// Sends an echo request, or a packet of a protocol that no service has, mostly to the address
    /// of a service.
    pub(crate) fn ping(&mut self) {
        let (interface, address) = self.client();
        let (_, dst) = self.destination();
        let icmp = if self.v6 { ICMPV6 } else { ICMP };
        let protocol = self.random.pick(&[icmp, icmp, GRE]);
        let tuple = Tuple {
            protocol,
            src: at(address, 0),
            dst: at(dst.ip(), 0),
        };
        let id = self.random.below(6) as u16;
        let shape = Shape {
            fragment: self.random.one_in(12).then_some((id, true)),
            ..self.shape(protocol)
        };
        let packet = Packet {
            tuple,
            kind: Kind::Data,
            shape,
        };
        self.operations.push(Operation::Send(interface, packet));
    }
    pub(crate) fn complain(&mut self) {
        if self.conversations.is_empty() {
            return;
        }
        let Conversation {
            interface, tuple, ..
        } = self.random.pick(&self.conversations);
        let complaint = Complaint {
            error: self.random.pick(&Error::ALL).0,
            about: self.random.pick(&About::ALL).0,
            quote: self.random.pick(&[8, 8, 12, 20, 60]),
            tuple,
        };
        self.operations
            .push(Operation::Complain(interface, complaint));
    }
    /// Sends a client's packet that belongs to no conversation.
    pub(crate) fn stray(&mut self) {
        let (interface, address) = self.client();
        let (protocol, dst) = self.destination();
        let src = at(address, self.client_port());
        let tuple = Tuple { protocol, src, dst };
        let kind = self
            .random
            .pick(&[Kind::Ack, Kind::SynAck, Kind::Fin, Kind::Rst, Kind::Data]);
        let shape = self.shape(protocol);
        let packet = Packet { tuple, kind, shape };
        self.operations.push(Operation::Send(interface, packet));
    }
    /// Sends a packet of no conversation out of the node, from a process of the node or forwarded.
    pub(crate) fn out(&mut self) {
        let v6 = self.v6;
        let ports = [30_080, 30_053, 30_080, 40_000];
        let src = at(services::node(v6), self.random.pick(&ports));
        let (_, peer) = self.client();
        let dst = at(peer, self.client_port());
        let protocol = self.random.pick(&[UDP, UDP, SCTP, TCP]);
        let tuple = Tuple { protocol, src, dst };
        let packet = Packet {
            tuple,
            kind: Kind::Data,
            shape: Shape::default(),
        };
        let is_own = !self.random.one_in(5);
        self.operations.push(Operation::Out(is_own, packet));
        if self.random.one_in(2) && !peer_is_odd(peer) {
            let packet = Packet {
                tuple: tuple.reversed(),
                ..packet
            };
            let interface = Interface::towards(peer);
            self.operations.push(Operation::Send(interface, packet));
        }
    }
}

/// Returns true for the node's own address: the node sends nothing to itself through an interface.
fn peer_is_odd(peer: IpAddr) -> bool {
    services::is_node(peer)
}
