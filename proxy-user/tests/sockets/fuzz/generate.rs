// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Generates sequences from a seed: sockets are used in random order while services change.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use super::{
    operations::{Family, Kind, NUMBERS, Operation, is_udp, numbered},
    services::{PODS, cluster_ip, node, pod},
};
use crate::{
    kept::Sequence,
    random::Random,
    service::{Endpoint, Service},
    world::{From, PORT},
};

struct Generator {
    random: Random,
    /// The open sockets by number; None for a number that is free.
    sockets: Vec<Option<Kind>>,
    /// The services that exist, by number.
    services: BTreeMap<u8, Service>,
    operations: Vec<Operation>,
}

/// Returns the sequence that this seed generates.
pub(crate) fn sequence(seed: u64) -> Sequence<Operation> {
    let mut random = Random::new(seed);
    let length = random.pick(&[10, 20, 40, 80]);
    let restart = random.one_in(150).then(|| random.below(length));
    let most = random.pick(&[1, 3, 8]);
    let mut generator = Generator {
        random,
        sockets: vec![None; most],
        services: BTreeMap::new(),
        operations: Vec::new(),
    };
    for number in NUMBERS {
        if !generator.random.one_in(5) {
            generator.apply(number);
        }
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
    fn apply(&mut self, number: u8) {
        let random = &mut self.random;
        // Most services have no weights.
        let is_weighted = random.one_in(3);
        let mut endpoints = Vec::new();
        for pod in PODS {
            let weight = if is_weighted { weight(random) } else { 1 };
            let endpoint = Endpoint { pod, weight };
            endpoints.extend((!random.one_in(3)).then_some(endpoint));
        }
        let local = random.one_in(4);
        let wanted = Service {
            endpoints,
            affinity: random.one_in(4),
            local,
            far: local && random.one_in(2),
            ..numbered(number)
        };
        self.services.insert(number, wanted.clone());
        self.operations.push(Operation::Apply(wanted));
    }
    /// Gives the endpoints of a service that exists other weights.
    fn weigh(&mut self, number: u8) {
        let Some(wanted) = self.services.get_mut(&number) else {
            return;
        };
        for endpoint in &mut wanted.endpoints {
            endpoint.weight = weight(&mut self.random);
        }
        self.operations.push(Operation::Apply(wanted.clone()));
    }
    fn step(&mut self) {
        let socket = self.random.below(self.sockets.len() as u64) as u8;
        let Some(kind) = self.sockets[usize::from(socket)] else {
            return self.open(socket);
        };
        let operation = match self.random.below(100) {
            0..6 => {
                let number = self.random.pick(&NUMBERS);
                let exists = self.services.contains_key(&number);
                match self.random.below(6) {
                    0 if exists => {
                        self.services.remove(&number);
                        Operation::Remove(number)
                    }
                    1 | 2 if exists => return self.weigh(number),
                    _ => return self.apply(number),
                }
            }
            6..10 => {
                self.sockets[usize::from(socket)] = None;
                Operation::Close(socket)
            }
            10..14 if kind.udp => Operation::Disconnect(socket),
            14..34 => Operation::Connect(socket, self.target(kind)),
            34..60 if kind.udp => Operation::Ask(socket, Some(self.target(kind))),
            _ => Operation::Ask(socket, None),
        };
        self.operations.push(operation);
    }
    fn open(&mut self, socket: u8) {
        let random = &mut self.random;
        let kind = Kind {
            udp: !random.one_in(4),
            family: random.pick(&[Family::V4, Family::V6, Family::Dual, Family::Dual]),
            place: random.pick(&[From::Pod, From::Node]),
        };
        self.sockets[usize::from(socket)] = Some(kind);
        self.operations.push(Operation::Open(socket, kind));
    }

    /// Returns a random address to send to, mostly that of a service.
    fn target(&mut self, kind: Kind) -> SocketAddr {
        let random = &mut self.random;
        let v6 = match kind.family {
            Family::V4 => false,
            Family::V6 => !random.one_in(25),
            Family::Dual => random.one_in(2),
        };
        let any = random.one_in(20);
        let fitting = |number: &u8| any || is_udp(*number) == kind.udp;
        let number = random.pick(&Vec::from_iter(NUMBERS.into_iter().filter(fitting)));
        let node_port = 30_000 + u16::from(number);
        let to = match random.below(20) {
            0..3 => SocketAddr::new(node(v6), node_port),
            3 => SocketAddr::new(Ipv4Addr::LOCALHOST.into(), node_port),
            4..7 => SocketAddr::new(pod(random.pick(&PODS), v6), PORT),
            7 => SocketAddr::new(cluster_ip(number, v6), 81),
            8 if kind.udp && random.one_in(2) => SocketAddr::new(cluster_ip(99, v6), 80),
            _ => SocketAddr::new(cluster_ip(number, v6), 80),
        };
        match to.ip() {
            // An IPv6 socket takes a mapped address. The loopback address of IPv6 itself never
            // occurs, because it serves no node port.
            IpAddr::V4(ip) if kind.family != Family::V4 => {
                SocketAddr::new(ip.to_ipv6_mapped().into(), to.port())
            }
            _ => to,
        }
    }
}

fn weight(random: &mut Random) -> u16 {
    random.pick(&[0, 0, 1, 1, 2, 5])
}
