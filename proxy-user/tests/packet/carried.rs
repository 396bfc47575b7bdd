// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `clientAddress: keep`: packets that keep their client's address, on the node that the client
//! meets and on the endpoint's. The fuzz's node has no other node that could take headers off.

use std::{
    array,
    net::{IpAddr, SocketAddr},
};

use proxy_common::{
    Counter, EndpointSet, Protocol, ServiceFlags,
    carried::{self, Direction},
    maps,
};
use rstest::rstest;

use crate::{
    node::{INSIDE, Node, OUTSIDE},
    packets::{Tcp, addresses, at, ends, icmp, numbered, raw, tcp, transport, transport_sum, udp},
    service::{Addresses, IPV4, IPV6, Service},
    wire::{TCP, UDP},
    world::{NEXT, Outcome, REDIRECT, SHOT},
};

const PORT: u16 = 6099;
const KEY: carried::Key = [0x1122_3344_5566_7788, 0x99aa_bbcc_ddee_ff00];
const OLD_KEY: carried::Key = [7, 8];
/// How much longer an outer header makes a packet.
const fn overhead(a: &Addresses) -> usize {
    16 + if a.node.is_ipv6() { 40 } else { 20 }
}

/// A node with the keys, both of whose interfaces many clients share.
fn node(a: Addresses) -> Node {
    let node = Node::new(a, |options| options.header_port = Some(PORT), 0);
    for (number, key) in [(0, KEY), (1, OLD_KEY)] {
        node.world.store(maps::HEADER_KEYS, number, key);
    }
    for index in [OUTSIDE, INSIDE] {
        node.world.store(maps::SHARED_INTERFACES, index, index);
    }
    node
}

/// A node that keeps its clients' addresses, with a service whose endpoint is in these sets.
fn ingress_node(a: Addresses, protocol: Protocol, sets: EndpointSet) -> Node {
    let mut node = node(a);
    let mut service = Service::over(protocol, a);
    service.backends[0].sets = EndpointSet::CLUSTER.union(sets);
    let mut plan = service.plan();
    for port in &mut plan.ports {
        let v4 = port.v4.frontends.iter_mut().map(|one| &mut one.flags);
        let v6 = port.v6.frontends.iter_mut().map(|one| &mut one.flags);
        let keep = |flags: &mut ServiceFlags| *flags = flags.with(ServiceFlags::KEEP_CLIENT, true);
        v4.chain(v6).for_each(keep);
    }
    node.world.publish(&service.name, plan);
    node
}

/// The endpoint's node: its pod is behind [`INSIDE`].
fn endpoints_node(a: Addresses) -> Node {
    let node = node(a);
    node.world.store(maps::SHARED_INTERFACES, INSIDE, 0_u32);
    node
}

fn words(address: IpAddr) -> [u32; 4] {
    let octets = match address {
        IpAddr::V4(v4) => v4.to_ipv6_compatible().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    array::from_fn(|n| u32::from_ne_bytes(array::from_fn(|m| octets[n * 4 + m])))
}

/// A packet with an outer header, and the token in it.
fn carried_with(token: [u8; 8], (src, dst): (IpAddr, IpAddr), inner: &[u8]) -> Vec<u8> {
    let length = u16::try_from(16 + inner.len() - 14).expect("short");
    let ports = [0xc123, PORT, length, 0].map(u16::to_be_bytes);
    let body = [&ports.concat(), &token[..], &inner[14..]].concat();
    raw(src, dst, UDP, &body)
}

fn token(key: carried::Key, direction: Direction, (src, dst): (IpAddr, IpAddr)) -> [u8; 8] {
    carried::token(key, direction, words(src), words(dst)).to_le_bytes()
}

fn carried(direction: Direction, ends: (IpAddr, IpAddr), inner: &[u8]) -> Vec<u8> {
    carried_with(token(KEY, direction, ends), ends, inner)
}

/// The packet in an outer header between these ends; checks the header.
#[track_caller]
fn inside(outer: &[u8], direction: Direction, ends: (IpAddr, IpAddr)) -> Vec<u8> {
    assert_eq!(addresses(outer), ends);
    let udp = transport(outer);
    let length = u16::try_from(outer.len() - udp).expect("short");
    assert_eq!(outer[udp + 2..udp + 4], PORT.to_be_bytes());
    assert_eq!(outer[udp + 4..udp + 6], length.to_be_bytes());
    assert_eq!(outer[udp + 8..udp + 16], token(KEY, direction, ends));
    [&outer[..14], &outer[udp + 16..]].concat()
}

/// Sends a client's packet through the node that it meets.
fn there(node: &Node, packet: &[u8]) -> Outcome {
    let inside = node.ingress(packet, OUTSIDE);
    assert_eq!(inside.verdict, NEXT, "{inside:?}");
    node.egress(&inside.packet, inside.mark, INSIDE)
}

#[rstest]
fn a_client_keeps_its_address_towards_another_node(
    #[values(*IPV4, *IPV6)] a: Addresses,
    #[values(TCP, UDP)] protocol: u8,
) {
    let node = ingress_node(a, Protocol(protocol), EndpointSet::TAKES_HEADERS);
    let (client, service, backend) = (a.outside_client(), a.service(), a.endpoint());
    let packet = |from, to, flags| match protocol {
        TCP => tcp(from, to, flags, b""),
        _ => udp(from, to, b"?"),
    };
    for (is_there, flags) in [
        (true, Tcp::Syn),
        (false, Tcp::SynAck),
        (true, Tcp::Ack),
        (false, Tcp::Fin),
    ] {
        if is_there {
            let sent = there(&node, &packet(client, service, flags));
            assert_eq!((sent.fate(), sent.mark), ((NEXT, Counter::Carried), 0));
            let inner = inside(&sent.packet, Direction::There, (a.node, backend.ip()));
            assert_eq!(ends(&inner), (client, backend));
            continue;
        }
        let answer = packet(backend, client, flags);
        let outer = carried(Direction::Back, (backend.ip(), a.node), &answer);
        let taken = node.ingress(&outer, INSIDE);
        assert_eq!(taken.fate(), (NEXT, Counter::HeaderTakenOff));
        assert_eq!(taken.ends(), (backend, client));
        let answered = node.egress(&taken.packet, 0, OUTSIDE);
        assert_eq!(answered.counter, Counter::ReplyTranslated);
        assert_eq!(answered.ends(), (service, client));
    }
    // The way back without a header works as well: this node may be the endpoint's gateway.
    let plain = node.ingress(&packet(backend, client, Tcp::Ack), INSIDE);
    assert_eq!(plain.verdict, NEXT);
    assert_eq!(node.egress(&plain.packet, 0, OUTSIDE).src(), service);
    // Of a flow that this node does not know.
    let other = packet(backend, at(client.ip(), 1), Tcp::Ack);
    let outer = carried(Direction::Back, (backend.ip(), a.node), &other);
    let fate = (SHOT, Counter::DroppedHeader);
    assert_eq!(node.ingress(&outer, INSIDE).fate(), fate);
}

#[rstest]
fn where_the_endpoint_is_decides_what_it_sees(#[values(*IPV4, *IPV6)] a: Addresses) {
    let (client, backend) = (a.outside_client(), a.endpoint());
    for (sets, counter, is_own) in [
        (EndpointSet::NONE, Counter::Masqueraded, false),
        (EndpointSet::HERE, Counter::Untouched, true),
        (EndpointSet::TAKES_HEADERS, Counter::Carried, true),
    ] {
        let node = ingress_node(a, Protocol::TCP, sets);
        let sent = there(&node, &tcp(client, a.service(), Tcp::Syn, b""));
        assert_eq!(sent.counter, counter, "{sets:?}");
        let inner = match counter {
            Counter::Carried => inside(&sent.packet, Direction::There, (a.node, backend.ip())),
            _ => sent.packet,
        };
        assert_eq!(ends(&inner).0 == client, is_own, "{sets:?}");
        let flow = &node.world.flows()[0];
        let is_carried = counter == Counter::Carried;
        assert_eq!((flow.carried, flow.masqueraded), (is_carried, !is_own));
    }
}

/// So a client waits for three seconds where headers are lost on the way.
#[rstest]
fn a_flow_that_begins_anew_without_an_answer_is_masqueraded(#[values(*IPV4, *IPV6)] a: Addresses) {
    let node = ingress_node(a, Protocol::TCP, EndpointSet::TAKES_HEADERS);
    let syn = tcp(a.outside_client(), a.service(), Tcp::Syn, b"");
    let sent = [(); 3].map(|()| there(&node, &syn).counter);
    let expected = [Counter::Carried, Counter::Carried, Counter::Masqueraded];
    assert_eq!(sent, expected);
}

#[rstest]
fn only_a_nodes_token_opens_the_door(#[values(*IPV4, *IPV6)] a: Addresses) {
    let node = endpoints_node(a);
    let (client, backend, via) = (a.client(), a.endpoint(), a.outsider);
    let packet = tcp(client, backend, Tcp::Syn, b"");
    let way = (via, backend.ip());
    let there = Direction::There;
    let taken = (NEXT, Counter::HeaderTakenOff);
    let refused = (SHOT, Counter::DroppedHeader);
    let untouched = (NEXT, Counter::Untouched);
    for (token, interface, fate) in [
        (token(KEY, there, way), OUTSIDE, taken),
        (token(OLD_KEY, there, way), OUTSIDE, taken),
        (token([1, 2], there, way), OUTSIDE, refused),
        (token([0, 0], there, way), OUTSIDE, refused),
        (token(KEY, there, (a.node, backend.ip())), OUTSIDE, refused),
        (token(KEY, there, (via, a.pod)), OUTSIDE, refused),
        // A datagram of somebody else's to that port.
        (*b"a query.", OUTSIDE, untouched),
        // The back door: this node has no such flow, and the endpoint is no node.
        (token(KEY, Direction::Back, way), OUTSIDE, untouched),
        // A pod of this node knows the token.
        (token(KEY, there, way), INSIDE, untouched),
    ] {
        let outer = carried_with(token, way, &packet);
        let outcome = node.ingress(&outer, interface);
        assert_eq!(outcome.fate(), fate, "{token:x?} {interface}");
        if fate == taken {
            assert_eq!(outcome.packet[14..], packet[14..]);
        }
    }
    // The endpoint is behind another node: this one is on the way.
    let elsewhere = tcp(client, a.outside_client(), Tcp::Syn, b"");
    let outer = carried(there, (via, a.outsider), &elsewhere);
    assert_eq!(node.ingress(&outer, OUTSIDE).fate(), untouched);
    // Its port may not lie about where the packet goes.
    let outer = carried(there, way, &tcp(client, at(a.pod, 8080), Tcp::Syn, b""));
    assert_eq!(node.ingress(&outer, OUTSIDE).fate(), refused);
}

/// A client's packet arrives at the endpoint's node.
fn arrives(node: &Node, via: IpAddr, packet: &[u8]) -> (u32, Counter) {
    let way = (via, node.backend().ip());
    node.ingress(&carried(Direction::There, way, packet), OUTSIDE)
        .fate()
}

const TAKEN: (u32, Counter) = (NEXT, Counter::HeaderTakenOff);

#[rstest]
fn answers_go_back_by_the_node_that_the_client_met(#[values(*IPV4, *IPV6)] a: Addresses) {
    let node = endpoints_node(a);
    let (client, backend, via) = (a.client(), a.endpoint(), a.outsider);
    let syn = tcp(client, backend, Tcp::Syn, b"");
    assert_eq!(arrives(&node, via, &syn), TAKEN);
    // The route to the client leads to another interface than that to the node.
    let answer = node.egress(&tcp(backend, client, Tcp::SynAck, b""), 0, INSIDE);
    assert_eq!(answer.fate(), (REDIRECT, Counter::Carried));
    let inner = inside(&answer.packet, Direction::Back, (backend.ip(), via));
    assert_eq!(ends(&inner), (backend, client));
    // Of another connection.
    let other = tcp(backend, at(client.ip(), 1), Tcp::SynAck, b"");
    assert_eq!(node.egress(&other, 0, INSIDE).counter, Counter::Untouched);

    // The endpoint's error about a datagram.
    let query = udp(client, backend, b"?");
    assert_eq!(arrives(&node, via, &query), TAKEN);
    let kind: [u8; 2] = if a.is_v6() { [1, 4] } else { [3, 3] };
    let message = [&kind[..], &[0; 6], &query[14..]].concat();
    let error = icmp(backend.ip(), client.ip(), &message);
    let sent = node.egress(&error, 0, INSIDE);
    assert_eq!(sent.fate(), (REDIRECT, Counter::Carried));
    let inner = inside(&sent.packet, Direction::Back, (backend.ip(), via));
    assert_eq!(inner[14..], error[14..]);
}

#[rstest]
fn one_node_at_a_time_has_a_tuple(#[values(*IPV4, *IPV6)] a: Addresses) {
    let node = endpoints_node(a);
    let (client, backend) = (a.client(), a.endpoint());
    let (first, second) = (a.outsider, a.balancer);
    let segment = |flags| tcp(client, backend, flags, b"");
    let same_ends = (SHOT, Counter::DroppedSameEnds);
    assert_eq!(arrives(&node, first, &segment(Tcp::Syn)), TAKEN);
    assert_eq!(arrives(&node, second, &segment(Tcp::Syn)), same_ends);
    assert_eq!(arrives(&node, second, &segment(Tcp::Ack)), same_ends);
    assert_eq!(arrives(&node, first, &segment(Tcp::Rst)), TAKEN);
    assert_eq!(arrives(&node, second, &segment(Tcp::Ack)), same_ends);
    assert_eq!(arrives(&node, second, &segment(Tcp::Syn)), TAKEN);
    assert_eq!(arrives(&node, first, &segment(Tcp::Syn)), same_ends);

    // A resolver may ask two nodes from one port, one after the other.
    for via in [first, a.pod, first] {
        let client = at(a.balancer, 40_000);
        assert_eq!(arrives(&node, via, &udp(client, backend, b"?")), TAKEN);
        let answer = node.egress(&udp(backend, client, b"!"), 0, OUTSIDE);
        assert_eq!(addresses(&answer.packet), (backend.ip(), via));
    }
}

/// Programs that have been taken over from leave to those behind them what they do not know.
#[rstest]
fn drained_programs_take_headers_off_known_flows_only(#[values(*IPV4, *IPV6)] a: Addresses) {
    let (client, backend, via) = (a.outside_client(), a.endpoint(), a.outsider);
    let (node, first) = (
        endpoints_node(a),
        ingress_node(a, Protocol::TCP, EndpointSet::TAKES_HEADERS),
    );
    let from = |port| tcp(at(a.client().ip(), port), backend, Tcp::Syn, b"");
    let answer = |port| {
        let answer = tcp(backend, at(client.ip(), port), Tcp::SynAck, b"");
        carried(Direction::Back, (backend.ip(), a.node), &answer)
    };
    arrives(&node, via, &from(1));
    there(&first, &tcp(client, a.service(), Tcp::Syn, b""));
    for node in [&node, &first] {
        node.world
            .store(maps::DRAINED, 0, maps::generation::DRAINED);
    }
    let untouched = (NEXT, Counter::Untouched);
    for (port, fate) in [(1, TAKEN), (2, untouched)] {
        assert_eq!(arrives(&node, via, &from(port)), fate);
    }
    for (port, fate) in [(client.port(), TAKEN), (1, untouched)] {
        assert_eq!(first.ingress(&answer(port), INSIDE).fate(), fate);
    }
}

/// A segment's option of the maximum segment size; the segment has another one before it.
fn asked(packet: &[u8]) -> u16 {
    let option = transport(packet) + 20 + 4;
    u16::from_be_bytes([packet[option + 2], packet[option + 3]])
}

fn asking(src: SocketAddr, dst: SocketAddr, flags: Tcp, size: u16) -> Vec<u8> {
    let plain = tcp(src, dst, flags, b"");
    let mut segment = plain[transport(&plain)..].to_vec();
    segment[12] = 0x70;
    segment[16..18].fill(0);
    segment.extend([1, 3, 3, 7, 2, 4]);
    segment.extend(size.to_be_bytes());
    raw(src.ip(), dst.ip(), TCP, &segment)
}

#[rstest]
fn segments_and_packets_leave_space_for_the_header(#[values(*IPV4, *IPV6)] a: Addresses) {
    /// That of both interfaces.
    const MTU: usize = 1400;
    let node = ingress_node(a, Protocol::TCP, EndpointSet::TAKES_HEADERS);
    let (client, service, backend) = (a.outside_client(), a.service(), a.endpoint());
    let way = (a.node, backend.ip());
    let headers = if a.is_v6() { 60 } else { 40 };
    let fits = MTU - overhead(&a);
    let largest = u16::try_from(fits - headers).expect("short");
    for (port, size, expected) in [(1, 9000, largest), (2, largest + 1, largest), (3, 536, 536)] {
        let client = at(client.ip(), port);
        let sent = there(&node, &asking(client, service, Tcp::Syn, size));
        let inner = inside(&sent.packet, Direction::There, way);
        assert_eq!(asked(&inner), expected);
        assert_eq!(ends(&inner), (client, backend), "and the checksum");
    }
    let back = endpoints_node(a);
    let syn = tcp(client, backend, Tcp::Syn, b"");
    assert_eq!(arrives(&back, a.outsider, &syn), TAKEN);
    let sent = back.egress(&asking(backend, client, Tcp::SynAck, 9000), 0, INSIDE);
    let inner = inside(&sent.packet, Direction::Back, (backend.ip(), a.outsider));
    assert_eq!(asked(&inner), largest);

    there(&node, &tcp(client, service, Tcp::Syn, b""));
    let segment = |length| {
        let payload = vec![7; length - headers];
        numbered(client, service, Tcp::Ack, (1, 1), &payload)
    };
    let sent = there(&node, &segment(fits));
    assert_eq!(sent.counter, Counter::Carried);
    assert_eq!(sent.packet.len(), 14 + MTU);
    // The error goes in where the packet would have gone out, as one from there.
    let refused = there(&node, &segment(fits + 1));
    assert_eq!(refused.fate(), (REDIRECT, Counter::TooLargeToCarry));
    assert_eq!(addresses(&refused.packet), (backend.ip(), client.ip()));
    assert_eq!(transport_sum(&refused.packet), 0, "the ICMP checksum");
    let mtu = transport(&refused.packet) + 6;
    let told = u16::from_be_bytes([refused.packet[mtu], refused.packet[mtu + 1]]);
    assert_eq!(usize::from(told), fits);
    let error = node.ingress(&refused.packet, INSIDE);
    assert_eq!(error.fate(), (NEXT, Counter::ReplyPassed));
    let error = node.egress(&error.packet, 0, OUTSIDE);
    assert_eq!(error.counter, Counter::IcmpTranslated);
    assert_eq!(addresses(&error.packet), (service.ip(), client.ip()));
}

/// An error from the client's side goes to the endpoint as the client's packets do.
#[rstest]
fn errors_from_clients_are_carried(#[values(*IPV4, *IPV6)] a: Addresses) {
    let node = ingress_node(a, Protocol::UDP, EndpointSet::TAKES_HEADERS);
    let (client, service, backend) = (a.outside_client(), a.service(), a.endpoint());
    there(&node, &udp(client, service, b"?"));
    let answer = udp(service, client, b"!");
    let kind: [u8; 2] = if a.is_v6() { [1, 4] } else { [3, 3] };
    let message = [&kind[..], &[0; 6], &answer[14..]].concat();
    let sent = there(&node, &icmp(client.ip(), service.ip(), &message));
    assert_eq!(sent.counter, Counter::Carried);
    let inner = inside(&sent.packet, Direction::There, (a.node, backend.ip()));
    assert_eq!(addresses(&inner), (client.ip(), backend.ip()));
    assert_eq!(transport_sum(&inner), 0, "the ICMP checksum");
}

/// A router between the nodes says that the packet with its header is too large.
#[rstest]
fn errors_about_a_header_become_errors_about_the_packet(#[values(*IPV4, *IPV6)] a: Addresses) {
    const MTU: u32 = 1300;
    let node = ingress_node(a, Protocol::TCP, EndpointSet::TAKES_HEADERS);
    let (client, service, backend) = (a.outside_client(), a.service(), a.endpoint());
    let sent = there(&node, &tcp(client, service, Tcp::Syn, b"")).packet;
    let kind: [u8; 2] = if a.is_v6() { [2, 0] } else { [3, 4] };
    let error = |quoted: &[u8]| {
        let message = [&kind[..], &[0; 2], &MTU.to_be_bytes(), quoted].concat();
        icmp(a.other_backend, a.node, &message)
    };
    let turned = node.ingress(&error(&sent[14..]), INSIDE);
    assert_eq!(turned.fate(), (NEXT, Counter::TooLargeToCarry));
    assert_eq!(addresses(&turned.packet), (backend.ip(), client.ip()));
    assert_eq!(transport_sum(&turned.packet), 0, "the ICMP checksum");
    let told = transport(&turned.packet) + 6;
    let told = u16::from_be_bytes([turned.packet[told], turned.packet[told + 1]]);
    assert_eq!(usize::from(told), MTU as usize - overhead(&a));
    let out = node.egress(&turned.packet, 0, OUTSIDE);
    assert_eq!(out.counter, Counter::IcmpTranslated);
    assert_eq!(addresses(&out.packet), (service.ip(), client.ip()));

    let mut forged = sent[14..].to_vec();
    forged[transport(&sent) - 14 + 12] ^= 1;
    let forged = error(&forged);
    node.ingress(&forged, INSIDE)
        .expect_untouched(&Node::framed(&forged, INSIDE));
}
