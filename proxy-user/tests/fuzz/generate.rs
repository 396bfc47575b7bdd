// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes sequences of operations from a seed: conversations that mostly continue as real ones do,
//! and packets that belong to none.

use std::net::{IpAddr, SocketAddr};

use crate::{
    cluster,
    kept::Sequence,
    model::wire::{SCTP, TCP, Tuple, UDP},
    operations::Operation,
    packets::{Kind, OTHER_TAG, Packet, Shape, at},
    random::{Random, number},
    services::{self, Interface, Service},
};

/// A client's conversation with a service, from which later packets are generated.
#[derive(Clone, Copy)]
pub(crate) struct Conversation {
    pub(crate) interface: Interface,
    pub(crate) tuple: Tuple,
    /// How many bytes the client and the backend have sent, in this order; for TCP only.
    pub(crate) sent: (i32, i32),
}

pub(crate) struct Generator {
    pub(crate) random: Random,
    pub(crate) v6: bool,
    pub(crate) services: Vec<Service>,
    pub(crate) conversations: Vec<Conversation>,
    pub(crate) operations: Vec<Operation>,
    /// How many client ports are used; there are few, so that tuples collide.
    ports: u64,
    /// Makes most clients send through the uplink.
    is_outside: bool,
}

/// Returns the sequence of a seed. Sequences with the same `cluster` begin with the same services.
pub(crate) fn sequence(seed: u64, cluster: u64) -> Sequence<Operation> {
    let mut random = Random::new(seed);
    let v6 = random.one_in(2);
    let services = cluster::services(&mut Random::new(cluster));
    let is_short = number("PORTOLAN_FUZZ_SHORT").is_some();
    let is_tight = random.one_in(8);
    let is_past = !is_tight && random.one_in(3);
    let first = match (is_tight, is_past) {
        (true, _) => Some(Operation::Tight),
        (_, true) => Some(Operation::Past(random.one_in(2))),
        _ => None,
    };
    let ports = random.pick(&[3, 12, 200]);
    let is_outside = first == Some(Operation::Past(true));
    let length = random.pick(match (is_short, is_tight) {
        (true, _) => &[10, 10, 20, 20][..],
        (_, true) => &[80, 150, 400],
        _ => &[10, 10, 20, 20, 40, 80, 150, 400],
    });
    let restart = random.one_in(2000).then(|| random.below(length));
    let mut generator = Generator {
        operations: first.into_iter().collect(),
        random,
        v6,
        services,
        conversations: Vec::new(),
        ports,
        is_outside,
    };
    let services = generator.services.iter().cloned();
    generator.operations.extend(services.map(Operation::Apply));
    if generator.random.one_in(2) {
        generator.change_settings();
    }
    for n in 0..length {
        if restart == Some(n) {
            generator.operations.push(Operation::Restart);
        }
        generator.step();
    }
    Sequence(generator.operations)
}

impl Generator {
    fn change_service(&mut self) {
        let index = self.random.below(self.services.len() as u64) as usize;
        let service = &mut self.services[index];
        let operation = if self.random.one_in(5) {
            Operation::Remove(service.name.clone())
        } else {
            *service = cluster::changed(service, &mut self.random);
            Operation::Apply(service.clone())
        };
        self.operations.push(operation);
    }
    fn change_settings(&mut self) {
        let settings = cluster::settings(&mut self.random);
        self.operations.push(Operation::Settings(settings));
    }
    fn step(&mut self) {
        match self.random.below(1000) {
            0..4 => self.change_service(),
            4..11 => self.change_settings(),
            11..22 => {
                let steps = self.random.pick(&[1, 1, 2, 4, 6, 7]);
                self.operations.push(Operation::Wait(steps));
                if self.random.one_in(2) {
                    self.operations.push(Operation::Sweep);
                }
            }
            22..40 => self.out(),
            40..70 => self.complain(),
            70..100 => self.stray(),
            100..120 => self.fragments(),
            120..130 => self.drain(),
            130..135 => self.crowd(),
            135..145 => self.ping(),
            145..400 => self.begin(),
            _ => self.go_on(),
        }
    }
    pub(crate) fn client(&mut self) -> (Interface, IpAddr) {
        let v6 = self.v6;
        let is_outside = self.is_outside && self.random.one_in(2);
        use Interface::{PodA, PodB, PodC, Uplink};
        let interfaces = [PodA, PodA, PodB, PodC, Uplink, Uplink];
        let from = if is_outside { 4 } else { 0 };
        let interface = self.random.pick(&interfaces[from..]);
        let address = match interface {
            Uplink => match self.random.below(12) {
                0 => services::pod(Uplink, v6),
                1 => services::node(v6),
                2 => services::pod(PodA, v6),
                n => services::outsider(9 + (n % 3) as u8, v6),
            },
            // A pod may send with the source address of another pod.
            _ if self.random.one_in(20) => services::pod(PodA, v6),
            pod => services::pod(pod, v6),
        };
        (interface, address)
    }
    pub(crate) fn client_port(&mut self) -> u16 {
        let base = self.random.pick(&[40_000, 40_000, 2000]);
        base + self.random.below(self.ports) as u16
    }
    /// Returns protocol and address of a service; seldom of no service, or a backend's address.
    pub(crate) fn destination(&mut self) -> (u8, SocketAddr) {
        let v6 = self.v6;
        let Service {
            protocol,
            mut frontends,
            mut backends,
            ..
        } = self.random.pick(&self.services);
        frontends.retain(|one| one.at.is_ipv6() == v6);
        backends.retain(|one| one.at.is_ipv6() == v6);
        let mut to = self.random.pick(&frontends).at;
        if to.ip().is_unspecified() {
            to.set_ip(services::node(v6));
        }
        match self.random.below(40) {
            0 => to.set_port(81),
            1 => to = at(services::outsider(77, v6), to.port()),
            2 => return (self.random.pick(&[TCP, UDP, SCTP]), to),
            // No service has this number.
            3 => to.set_ip(cluster::cluster_ip(99, v6)),
            4 => to.set_ip(services::other_node_address(v6)),
            5..8 if !backends.is_empty() => to = self.random.pick(&backends).at,
            _ => {}
        }
        (protocol, to)
    }
    pub(crate) fn shape(&mut self, protocol: u8) -> Shape {
        let random = &mut self.random;
        let mut shape = Shape {
            payload: random.pick(&[0, 0, 1, 7, 32]),
            ..Shape::default()
        };
        match random.below(60) {
            0 => shape.options = 1 + random.below(8) as i64,
            1 => shape.vlan = true,
            2 => shape.unsummed = protocol != UDP || !self.v6,
            3 => shape.bad_sum = true,
            4 => shape.other_mac = true,
            // Cuts off the payload, so that length fields are wrong, or also a part of the header.
            5 => shape.cut = shape.payload,
            6 => shape.cut = shape.payload + if protocol == TCP { 9 } else { 1 },
            _ => {}
        }
        shape
    }
    /// Returns a client's interface, and the tuple of its packets to some destination.
    pub(crate) fn anybody(&mut self) -> (Interface, Tuple) {
        let (interface, address) = self.client();
        let (protocol, dst) = self.destination();
        let src = at(address, self.client_port());
        (interface, Tuple::new(protocol, src, dst))
    }
    /// Adds a conversation that has not begun.
    pub(crate) fn converse(&mut self, interface: Interface, tuple: Tuple) -> Conversation {
        let conversation = Conversation {
            interface,
            tuple,
            sent: (0, 0),
        };
        self.conversations.push(conversation);
        conversation
    }
    pub(crate) fn begin(&mut self) {
        let (interface, tuple) = self.anybody();
        let conversation = self.converse(interface, tuple);
        self.send(conversation, Kind::first(tuple.protocol));
        // The backend answers half of them, and the client mostly acknowledges the answer.
        if self.random.one_in(2) {
            self.answer(conversation, Kind::SynAck);
            if !self.random.one_in(4) {
                self.send(conversation, Kind::Ack);
            }
        }
    }
    fn go_on(&mut self) {
        if self.conversations.is_empty() {
            return self.begin();
        }
        // The newest conversations send most of the packets.
        let count = self.conversations.len() as u64;
        let window = self.random.pick(&[4, 16, count]).min(count);
        let back = self.random.below(window);
        let index = (count - 1 - back) as usize;
        if self.random.one_in(4) {
            self.advance(index);
        }
        let conversation = self.conversations[index];
        use Kind::{Abort, Ack, BadAck, BadFin, Data, Fin, Rst, Syn, SynAck};
        let client = [
            Syn, Syn, Ack, Data, Data, BadAck, Fin, BadFin, Rst, SynAck, Abort,
        ];
        let backend = [SynAck, SynAck, Ack, Data, Data, Fin, Fin, Rst, Abort];
        if self.random.one_in(2) {
            let kind = self.random.pick(&client);
            self.send(conversation, kind);
        } else {
            let kind = self.random.pick(&backend);
            self.answer(conversation, kind);
        }
    }
    pub(crate) fn send(&mut self, conversation: Conversation, kind: Kind) {
        let (tuple, (own, other)) = (conversation.tuple, conversation.sent);
        let shape = self.numbered(tuple.protocol, -OTHER_TAG, own, other);
        self.push(conversation.interface, tuple, kind, shape);
    }
    /// Adds a packet that a client sends.
    pub(crate) fn push(&mut self, interface: Interface, tuple: Tuple, kind: Kind, shape: Shape) {
        let packet = Packet { tuple, kind, shape };
        self.operations.push(Operation::Send(interface, packet));
    }
    pub(crate) fn answer(&mut self, conversation: Conversation, kind: Kind) {
        let (tuple, (other, own)) = (conversation.tuple, conversation.sent);
        let shape = self.numbered(tuple.protocol, OTHER_TAG, own, other);
        let packet = Packet { tuple, kind, shape };
        let answer = Operation::Answer(conversation.interface, packet);
        self.operations.push(answer);
    }
}
