// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A sequence of IPv4, as the same one of IPv6.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ipnet::IpNet;

use crate::{
    errors::Complaint,
    kept::Sequence,
    model::wire::{ICMP, ICMPV6, Tuple},
    operations::Operation,
    packets::Packet,
    services::{Backend, Frontend, Service},
};

/// Returns the sequence with every address in its place of IPv6: see `services`.
pub(crate) fn in_v6(sequence: &Sequence<Operation>) -> Sequence<Operation> {
    Sequence(sequence.0.iter().map(operation).collect())
}

fn operation(step: &Operation) -> Operation {
    match step {
        Operation::Apply(service) => Operation::Apply(of_service(service)),
        Operation::Send(interface, packet) => Operation::Send(*interface, of_packet(packet)),
        Operation::Answer(interface, packet) => Operation::Answer(*interface, of_packet(packet)),
        Operation::Out(is_own, packet) => Operation::Out(*is_own, of_packet(packet)),
        Operation::Complain(interface, complaint) => {
            let tuple = of_tuple(complaint.tuple);
            Operation::Complain(
                *interface,
                Complaint {
                    tuple,
                    ..*complaint
                },
            )
        }
        other => other.clone(),
    }
}

fn of_service(service: &Service) -> Service {
    let frontends = service.frontends.iter();
    let backends = service.backends.iter();
    let sources = service.sources.iter();
    Service {
        frontends: frontends
            .map(|one| Frontend {
                at: at(one.at),
                ..*one
            })
            .collect(),
        backends: backends
            .map(|one| Backend {
                at: at(one.at),
                ..*one
            })
            .collect(),
        sources: sources.map(range).collect(),
        ..service.clone()
    }
}

fn of_packet(packet: &Packet) -> Packet {
    Packet {
        tuple: of_tuple(packet.tuple),
        ..*packet
    }
}

fn of_tuple(tuple: Tuple) -> Tuple {
    let Tuple { protocol, src, dst } = tuple;
    Tuple {
        protocol: if protocol == ICMP { ICMPV6 } else { protocol },
        src: at(src),
        dst: at(dst),
    }
}

fn at(socket: SocketAddr) -> SocketAddr {
    SocketAddr::new(address(socket.ip()), socket.port())
}

fn range(range: &IpNet) -> IpNet {
    let length = 96 + range.prefix_len();
    IpNet::new(address(range.network()), length).expect("a range")
}

fn address(address: IpAddr) -> IpAddr {
    let IpAddr::V4(v4) = address else {
        return address;
    };
    let text = match v4.octets() {
        _ if v4 == Ipv4Addr::LOCALHOST => "::1".to_owned(),
        [10, 40, c, d] => format!("fd00:40:0:{c}::{d}"),
        [172, 30, c, d] => format!("fd00:30::{c}{d:02}"),
        [192, 168, c, d] => format!("fd00:c0:{}::{d}", c - 40),
        [198, 51, _, d] => format!("2001:db8:51::{d}"),
        [203, 0, _, d] => format!("2001:db8:113::{d}"),
        _ => "::".to_owned(),
    };
    text.parse().expect("an address")
}
