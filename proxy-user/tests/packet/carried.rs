// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `clientAddress: keep`: on the node that the client meets, first packets with an outer header; on
//! the endpoint's node, the client's address put back. The fuzz's node has no other node that could
//! take headers off.

use std::{
    array,
    net::{IpAddr, SocketAddr},
};

use proxy_common::{Counter, EndpointSet, Protocol, ServiceFlags, carried, maps};
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
/// The masquerade port in headers that tests make.
const MASQUERADE: u16 = 33_000;

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
    let keep = |flags: &mut ServiceFlags| *flags = flags.with(ServiceFlags::KEEP_CLIENT, true);
    for port in &mut plan.ports {
        port.v4
            .frontends
            .iter_mut()
            .for_each(|one| keep(&mut one.flags));
        port.v6
            .frontends
            .iter_mut()
            .for_each(|one| keep(&mut one.flags));
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
    match address {
        IpAddr::V4(v4) => [0, 0, 0, u32::from_ne_bytes(v4.octets())],
        IpAddr::V6(v6) => {
            let octets = v6.octets();
            array::from_fn(|n| u32::from_ne_bytes(array::from_fn(|m| octets[n * 4 + m])))
        }
    }
}

/// A packet with an outer header, and the token in it.
fn carried_with(token: [u8; 8], (src, dst): (IpAddr, IpAddr), inner: &[u8]) -> Vec<u8> {
    let length = u16::try_from(16 + inner.len() - 14).expect("short");
    let ports = [MASQUERADE, PORT, length, 0].map(u16::to_be_bytes);
    let body = [&ports.concat(), &token[..], &inner[14..]].concat();
    raw(src, dst, UDP, &body)
}

fn token(key: carried::Key, (src, dst): (IpAddr, IpAddr)) -> [u8; 8] {
    carried::token(key, words(src), words(dst)).to_le_bytes()
}

/// The packet in an outer header between these ends; checks the header.
#[track_caller]
fn inside(outer: &[u8], (from, to): (SocketAddr, IpAddr)) -> Vec<u8> {
    let udp = transport(outer);
    let length = u16::try_from(outer.len() - udp).expect("short");
    assert_eq!(addresses(outer), (from.ip(), to));
    assert_eq!(outer[udp..udp + 2], from.port().to_be_bytes());
    assert_eq!(outer[udp + 2..udp + 4], PORT.to_be_bytes());
    assert_eq!(outer[udp + 4..udp + 6], length.to_be_bytes());
    assert_eq!(outer[udp + 8..udp + 16], token(KEY, (from.ip(), to)));
    [&outer[..14], &outer[udp + 16..]].concat()
}

/// Sends a client's packet through the node that it meets.
fn there(node: &Node, packet: &[u8]) -> Outcome {
    let inside = node.ingress(packet, OUTSIDE);
    assert_eq!(inside.verdict, NEXT, "{inside:?}");
    node.egress(&inside.packet, inside.mark, INSIDE)
}

#[rstest]
fn packets_have_a_header_until_the_endpoint_answers(
    #[values(*IPV4, *IPV6)] a: Addresses,
    #[values(TCP, UDP)] protocol: u8,
) {
    let node = ingress_node(a, Protocol(protocol), EndpointSet::TAKES_HEADERS);
    let (client, service, backend) = (a.outside_client(), a.service(), a.endpoint());
    let packet = |from, to, flags| match protocol {
        TCP => tcp(from, to, flags, b""),
        _ => udp(from, to, b"?"),
    };
    let mut ports = [0; 2];
    for port in &mut ports {
        let sent = there(&node, &packet(client, service, Tcp::Syn));
        assert_eq!((sent.fate(), sent.mark), ((NEXT, Counter::Carried), 0));
        let udp = transport(&sent.packet);
        *port = u16::from_be_bytes([sent.packet[udp], sent.packet[udp + 1]]);
        let inner = inside(&sent.packet, (at(a.node, *port), backend.ip()));
        assert_eq!(ends(&inner), (client, backend));
    }
    assert_eq!(ports[0], ports[1]);
    let masqueraded = at(a.node, ports[0]);
    let answer = node.ingress(&packet(backend, masqueraded, Tcp::SynAck), INSIDE);
    assert_eq!(answer.fate(), (NEXT, Counter::ReplyUnmasqueraded));
    let answered = node.egress(&answer.packet, 0, OUTSIDE);
    assert_eq!(answered.counter, Counter::ReplyTranslated);
    assert_eq!(answered.ends(), (service, client));
    let sent = there(&node, &packet(client, service, Tcp::Ack));
    assert_eq!(sent.fate(), (NEXT, Counter::Masqueraded));
    assert_eq!(sent.ends(), (masqueraded, backend));
}

#[rstest]
fn where_the_endpoint_is_decides_what_it_sees(#[values(*IPV4, *IPV6)] a: Addresses) {
    let (client, backend) = (a.outside_client(), a.endpoint());
    for (sets, counter) in [
        (EndpointSet::NONE, Counter::Masqueraded),
        (EndpointSet::HERE, Counter::Untouched),
        (EndpointSet::TAKES_HEADERS, Counter::Carried),
    ] {
        let node = ingress_node(a, Protocol::TCP, sets);
        let sent = there(&node, &tcp(client, a.service(), Tcp::Syn, b""));
        assert_eq!(sent.counter, counter, "{sets:?}");
        let is_carried = counter == Counter::Carried;
        let is_own = sets.intersects(EndpointSet::HERE);
        if !is_carried {
            let from = if is_own { client.ip() } else { a.node };
            assert_eq!(addresses(&sent.packet), (from, backend.ip()));
        }
        let flow = &node.world.flows()[0];
        assert_eq!((flow.carried, flow.masqueraded), (is_carried, !is_own));
    }
}

/// Answers to that port would be taken for headers.
#[rstest]
fn no_flow_leaves_from_the_headers_port(#[values(*IPV4, *IPV6)] a: Addresses) {
    let node = ingress_node(a, Protocol::UDP, EndpointSet::NONE);
    let client = at(a.outside_client().ip(), PORT);
    let sent = there(&node, &udp(client, a.service(), b"?"));
    assert_eq!(sent.counter, Counter::Masqueraded);
    assert!(sent.src().ip() == a.node && sent.src().port() != PORT);
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
fn what_does_not_fit_with_a_header_is_masqueraded(#[values(*IPV4, *IPV6)] a: Addresses) {
    /// That of both interfaces.
    const MTU: usize = 1400;
    let node = ingress_node(a, Protocol::UDP, EndpointSet::TAKES_HEADERS);
    let (client, service) = (a.outside_client(), a.service());
    let (ip, overhead) = if a.is_v6() { (40, 56) } else { (20, 36) };
    let fits = MTU - overhead - ip - 8;
    for (length, counter) in [(fits + 1, Counter::Masqueraded), (fits, Counter::Carried)] {
        let sent = there(&node, &udp(client, service, &vec![7; length]));
        assert_eq!(sent.counter, counter, "{length}");
    }
}

#[rstest]
fn only_a_nodes_token_opens_the_door(#[values(*IPV4, *IPV6)] a: Addresses) {
    let node = endpoints_node(a);
    let (client, backend, via) = (a.client(), a.endpoint(), a.outsider);
    let packet = tcp(client, backend, Tcp::Syn, b"");
    let way = (via, backend.ip());
    let taken = (NEXT, Counter::HeaderTakenOff);
    let refused = (SHOT, Counter::DroppedHeader);
    let untouched = (NEXT, Counter::Untouched);
    for (token, interface, fate) in [
        (token(KEY, way), OUTSIDE, taken),
        (token(OLD_KEY, way), OUTSIDE, taken),
        (token([1, 2], way), OUTSIDE, refused),
        (token([0, 0], way), OUTSIDE, refused),
        (token(KEY, (a.node, backend.ip())), OUTSIDE, refused),
        (token(KEY, (via, a.pod)), OUTSIDE, refused),
        (*b"a query.", OUTSIDE, refused),
        // A pod of this node knows the token.
        (token(KEY, way), INSIDE, untouched),
    ] {
        let outer = carried_with(token, way, &packet);
        let outcome = node.ingress(&outer, interface);
        assert_eq!(outcome.fate(), fate, "{token:x?} {interface}");
        if fate == taken {
            assert_eq!(outcome.packet[14..], packet[14..]);
        }
    }
    // The endpoint is behind another node: this one is on the way.
    let on_the_way = (via, a.outsider);
    let packet = tcp(client, a.outside_client(), Tcp::Syn, b"");
    let outer = carried_with(token(KEY, on_the_way), on_the_way, &packet);
    assert_eq!(node.ingress(&outer, OUTSIDE).fate(), untouched);
    let others = carried_with(*b"a query.", on_the_way, &packet);
    assert_eq!(node.ingress(&others, OUTSIDE).fate(), untouched);
    // The packet may not go elsewhere than its header.
    let outer = carried_with(
        token(KEY, way),
        way,
        &tcp(client, at(a.pod, 8080), Tcp::Syn, b""),
    );
    assert_eq!(node.ingress(&outer, OUTSIDE).fate(), refused);
}

/// A client's packet arrives at the endpoint's node with a header; returns its ends inside.
#[track_caller]
fn arrives(node: &Node, via: IpAddr, packet: &[u8]) -> (SocketAddr, SocketAddr) {
    let way = (via, node.backend().ip());
    let taken = node.ingress(&carried_with(token(KEY, way), way, packet), OUTSIDE);
    assert_eq!(taken.fate(), (NEXT, Counter::HeaderTakenOff));
    taken.ends()
}

#[rstest]
fn the_endpoints_node_puts_the_client_back(
    #[values(*IPV4, *IPV6)] a: Addresses,
    #[values(TCP, UDP)] protocol: u8,
) {
    let node = endpoints_node(a);
    let (client, backend, via) = (a.client(), a.endpoint(), at(a.outsider, MASQUERADE));
    let packet = |from, to, flags| match protocol {
        TCP => tcp(from, to, flags, b""),
        _ => udp(from, to, b"?"),
    };
    // Before the header, and of another port of that node: nothing is known of it.
    let unknown = packet(via, backend, Tcp::Ack);
    node.ingress(&unknown, OUTSIDE).expect_untouched(&unknown);
    for _ in 0..2 {
        let inner = packet(client, backend, Tcp::Syn);
        assert_eq!(arrives(&node, via.ip(), &inner), (client, backend));
    }
    // The route to the client leads to another interface than that to the node.
    let answer = node.egress(&packet(backend, client, Tcp::SynAck), 0, INSIDE);
    assert_eq!(answer.fate(), (REDIRECT, Counter::ReplyTranslated));
    assert_eq!(answer.ends(), (backend, via));
    let plain = node.ingress(&packet(via, backend, Tcp::Ack), OUTSIDE);
    assert_eq!(plain.fate(), (NEXT, Counter::ForwardedHit));
    assert_eq!(plain.ends(), (client, backend));
    // Of another connection.
    let other = packet(backend, at(client.ip(), 1), Tcp::SynAck);
    assert_eq!(node.egress(&other, 0, INSIDE).counter, Counter::Untouched);
    let other = packet(at(via.ip(), 1), backend, Tcp::Ack);
    node.ingress(&other, OUTSIDE).expect_untouched(&other);
    // The other node gives the port to another client.
    let next = at(client.ip(), 1);
    if protocol == TCP {
        node.ingress(&tcp(via, backend, Tcp::Rst, b""), OUTSIDE);
    }
    let inner = packet(next, backend, Tcp::Syn);
    assert_eq!(arrives(&node, via.ip(), &inner), (next, backend));
    let answer = node.egress(&packet(backend, next, Tcp::SynAck), 0, INSIDE);
    assert_eq!(answer.ends(), (backend, via));
}

#[rstest]
fn errors_find_both_ends(#[values(*IPV4, *IPV6)] a: Addresses) {
    let node = endpoints_node(a);
    let (client, backend, via) = (a.client(), a.endpoint(), at(a.outsider, MASQUERADE));
    let query = udp(client, backend, b"?");
    arrives(&node, via.ip(), &query);
    let kind: [u8; 2] = if a.is_v6() { [1, 4] } else { [3, 3] };
    let error =
        |from, to, quoted: &[u8]| icmp(from, to, &[&kind[..], &[0; 6], &quoted[14..]].concat());
    // The endpoint's, about a datagram.
    let sent = node.egress(&error(backend.ip(), client.ip(), &query), 0, INSIDE);
    assert_eq!(sent.fate(), (REDIRECT, Counter::ReplyTranslated));
    let expected = error(backend.ip(), via.ip(), &udp(via, backend, b"?"));
    assert_eq!(sent.packet[14..], expected[14..]);
    // A router's, about an answer.
    let about = error(a.outsider, backend.ip(), &udp(backend, via, b"!"));
    let came = node.ingress(&about, OUTSIDE);
    assert_eq!(came.fate(), (NEXT, Counter::IcmpTranslated));
    let expected = error(a.outsider, backend.ip(), &udp(backend, client, b"!"));
    assert_eq!(came.packet[14..], expected[14..]);
}

/// The programs behind them have the other flows, and would not see a header that is off.
#[rstest]
fn drained_programs_take_headers_off_known_flows_only(#[values(*IPV4, *IPV6)] a: Addresses) {
    let node = endpoints_node(a);
    let (backend, via) = (a.endpoint(), a.outsider);
    let from = |port| tcp(at(a.client().ip(), port), backend, Tcp::Syn, b"");
    arrives(&node, via, &from(1));
    let drained = maps::generation::DRAINED;
    node.world.store(maps::DRAINED, 0, drained);
    arrives(&node, via, &from(1));
    let other = (a.balancer, backend.ip());
    let unknown = carried_with(token(KEY, other), other, &from(2));
    node.ingress(&unknown, OUTSIDE).expect_untouched(&unknown);
}

/// Its node's stack would drop packets that come in from its own address.
#[rstest]
fn the_endpoints_own_node_is_no_client_to_put_back(#[values(*IPV4, *IPV6)] a: Addresses) {
    let node = endpoints_node(a);
    let (backend, via) = (a.endpoint(), a.outsider);
    let query = udp(at(a.node, 5), backend, b"?");
    let masqueraded = (at(via, MASQUERADE), backend);
    assert_eq!(arrives(&node, via, &query), masqueraded);
}

/// Two nodes send the same client's port to one endpoint: the second's packets keep the address
/// that the node has put in.
#[rstest]
fn a_tuple_that_another_node_has_is_masqueraded(
    #[values(*IPV4, *IPV6)] a: Addresses,
    #[values(TCP, UDP)] protocol: u8,
) {
    let node = endpoints_node(a);
    let (client, backend) = (a.client(), a.endpoint());
    let (first, second) = (a.outsider, a.balancer);
    let packet = match protocol {
        TCP => tcp(client, backend, Tcp::Syn, b""),
        _ => udp(client, backend, b"?"),
    };
    let masqueraded = (at(second, MASQUERADE), backend);
    for _ in 0..2 {
        assert_eq!(arrives(&node, first, &packet), (client, backend));
        assert_eq!(arrives(&node, second, &packet), masqueraded);
    }
}

#[rstest]
fn an_answer_that_does_not_fit_on_the_way_back_is_refused(#[values(*IPV4, *IPV6)] a: Addresses) {
    const MTU: usize = 1400;
    let node = endpoints_node(a);
    let (client, backend) = (a.client(), a.endpoint());
    arrives(&node, a.outsider, &tcp(client, backend, Tcp::Syn, b""));
    let headers = if a.is_v6() { 60 } else { 40 };
    let segment = |length| {
        let payload = vec![7; length - headers];
        numbered(backend, client, Tcp::Ack, (1, 1), &payload)
    };
    let sent = node.egress(&segment(MTU), 0, INSIDE);
    assert_eq!(sent.fate(), (REDIRECT, Counter::ReplyTranslated));
    // The error goes in where the packet would have gone out, as one from there.
    let refused = node.egress(&segment(MTU + 1), 0, INSIDE);
    assert_eq!(refused.fate(), (REDIRECT, Counter::TooLarge));
    assert_eq!(addresses(&refused.packet), (client.ip(), backend.ip()));
    assert_eq!(transport_sum(&refused.packet), 0, "the ICMP checksum");
    let mtu = transport(&refused.packet) + 6;
    let told = u16::from_be_bytes([refused.packet[mtu], refused.packet[mtu + 1]]);
    assert_eq!(usize::from(told), MTU);
}
