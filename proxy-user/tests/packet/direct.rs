// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A client uses one source port both to a service and straight to its backend: the two connections
//! never mix, whichever begins first.

use std::net::SocketAddr;

use proxy_common::{Counter, Protocol};
use rstest::rstest;

use crate::{
    packets::{Tcp, at, packet_over, tcp, udp},
    service::{Addresses, IPV4, IPV6, Service},
    world::{Context, World},
};

const TCP: Protocol = Protocol::TCP;

/// Sends the client's first packet; returns the source that the backend sees.
fn begin(world: &World, client: SocketAddr, to: SocketAddr, protocol: Protocol) -> SocketAddr {
    let packet = packet_over(protocol, client, to, Tcp::Syn);
    world.ingress(&packet).src()
}

/// Sends the backend's packet; returns its source and destination as the client sees them.
fn answer(
    world: &World,
    backend: SocketAddr,
    to: SocketAddr,
    protocol: Protocol,
) -> (SocketAddr, SocketAddr) {
    let packet = packet_over(protocol, backend, to, Tcp::SynAck);
    world.egress(&packet, false).ends()
}

#[rstest]
fn a_client_port_with_a_flow_can_also_connect_directly_to_the_backend(
    #[values(IPV4, IPV6)] a: Addresses,
    #[values(Protocol::TCP, Protocol::UDP)] protocol: Protocol,
    // The backend may be the client's neighbour at the same bridge.
    #[values(false, true)] is_bridged: bool,
) {
    let world = World::new(&[Service::over(protocol, a)]);
    let (client, service, backend) = a.ends();
    assert_eq!(begin(&world, client, service, protocol), client);
    assert_eq!(answer(&world, backend, client, protocol), (service, client));
    let mut first = packet_over(protocol, client, backend, Tcp::Syn);
    if is_bridged {
        first[..6].copy_from_slice(&[2, 0, 0, 0, 7, 7]);
    }
    let other = world.ingress(&first).src();
    assert_eq!(other.ip(), client.ip());
    assert_ne!(other, client, "the backend must tell the two apart");
    assert_eq!(answer(&world, backend, other, protocol), (backend, client));
    assert_eq!(answer(&world, backend, client, protocol), (service, client));
    // Later packets of both connections are translated as the first ones were.
    if protocol == Protocol::TCP {
        let data = tcp(client, backend, Tcp::Ack, b"data");
        assert_eq!(world.ingress(&data).src(), other);
        let data = tcp(client, service, Tcp::Ack, b"data");
        assert_eq!(world.ingress(&data).src(), client);
    }
}

#[test]
fn a_reply_entry_without_an_original_entry_keeps_its_tuple_only_at_first() {
    let a = IPV4;
    let (client, backend) = (a.client(), a.endpoint());
    let services = [("one", a.cluster_ip), ("two", a.other_cluster_ip)]
        .map(|(name, address)| Service::cluster_ip(name, Protocol::TCP, address, &[backend]));
    let world = World::new(&services);
    let connect = |to| begin(&world, client, at(to, 80), TCP);
    assert_eq!(connect(a.cluster_ip), client);
    // Another CPU has written the reply entry and is about to write the original entry.
    world.forget_originals();
    let second = connect(a.other_cluster_ip);
    assert_ne!(second, client);
    assert_eq!(
        answer(&world, backend, second, TCP),
        (at(a.other_cluster_ip, 80), client)
    );
    world.forget_originals();
    // The other CPU never writes it.
    std::thread::sleep(std::time::Duration::from_millis(2_100));
    assert_eq!(connect(a.cluster_ip), client);
}

#[rstest]
fn a_flow_of_another_pod_does_not_touch_a_direct_connection(#[values(IPV4, IPV6)] a: Addresses) {
    let world = World::new(&[Service::web(a)]);
    let (client, service, backend) = a.ends();
    // Another sender uses this client's address.
    world.set_shared(true);
    begin(&world, client, service, TCP);
    world.set_shared(false);
    assert_eq!(begin(&world, client, backend, TCP), client);
    let answered = tcp(backend, client, Tcp::SynAck, b"");
    assert_eq!(world.egress(&answered, false).counter, Counter::Untouched);
}

/// The note of a packet that programs before these have served.
fn noted(note: u32) -> Context {
    Context {
        note,
        ..Context::default()
    }
}

#[rstest]
fn a_packet_that_programs_before_these_have_translated_is_not_translated_again(
    #[values(IPV4, IPV6)] a: Addresses,
    #[values(Protocol::TCP, Protocol::UDP)] protocol: Protocol,
) {
    let world = World::new(&[Service::over(protocol, a)]);
    let (client, service, backend) = a.ends();
    let from = |from, to| packet_over(protocol, from, to, Tcp::Syn);
    let served = world.ingress(&from(client, service));
    let other = begin(&world, client, backend, protocol);
    assert_ne!(other, client, "or this shows nothing");
    world.set_behind();
    // As in old maps, the flow's packet has become one as of the direct conversation.
    let translated = from(client, backend);
    let passed = world.ingress_by(&translated, noted(served.note));
    passed.expect_untouched(&translated);
    assert_eq!(passed.note, served.note, "for other programs behind");
    let direct = world.ingress_by(&translated, noted(0));
    assert_eq!(direct.src(), other);
}

#[rstest]
fn a_flow_avoids_the_tuple_of_one_that_programs_before_these_have_begun(
    #[values(IPV4, IPV6)] a: Addresses,
) {
    let world = World::new(&[Service::web(a)]);
    let (client, service, backend) = a.ends();
    let elsewhere = at(a.outsider, 9);
    let served = world.ingress(&tcp(elsewhere, service, Tcp::Syn, b""));
    world.set_behind();
    let first = tcp(client, backend, Tcp::Syn, b"");
    world.ingress_by(&first, noted(served.note));
    assert_ne!(begin(&world, client, service, TCP), client);
}

#[test]
fn an_answer_that_programs_before_these_have_translated_is_none_of_the_nodes_own() {
    let a = IPV4;
    let world = World::new(&[Service::over(Protocol::UDP, a).at_node_port(30_080)]);
    let (client, node_port) = (a.outside_client(), at(a.node, 30_080));
    let question = world.forward(&udp(client, node_port, b"?"));
    let answer = udp(a.endpoint(), question.src(), b"!");
    let served = world.egress(&world.ingress(&answer).packet, false);
    let entries = world.entries(false);
    world.set_behind();
    let to_another = udp(node_port, at(a.outsider, 9), b"!");
    world.egress_by(&to_another, noted(served.note));
    assert_eq!(world.entries(false), entries);
}
