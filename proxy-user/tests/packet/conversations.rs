// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Complete connections and datagram exchanges: request and reply through both hooks.

use proxy_common::{
    Counter, FrontendKind, Protocol, Settings,
    masquerade::{Marks, PortRanges},
};
use rstest::rstest;

use crate::{
    errors::{TOO_BIG, error, expect_error},
    packets::{Tcp, at, crc32c, numbered, sctp, seen, tcp, udp},
    service::{Addresses, IPV4, IPV6, Service},
    world::{Context, LOOPBACK, NEXT, SHOT, World},
};

#[rstest]
fn a_pods_connection_reaches_the_backend_and_its_answers_come_from_the_service(
    #[values(IPV4, IPV6)] a: Addresses,
) {
    let world = World::new(&[Service::web(a)]);
    let (client, service, backend) = a.ends();

    let first = world.ingress(&tcp(client, service, Tcp::Syn, b""));
    assert_eq!(first.fate(), (NEXT, Counter::ForwardedNew));
    assert!(!first.marked);
    assert_eq!(first.ends(), (client, backend));
    let passed = world.egress(&first.packet, false);
    passed.expect_untouched(&first.packet);

    let answer = tcp(backend, client, Tcp::SynAck, b"");
    // To no port that a service has.
    world.expect_untouched(&answer);
    let outside = world.egress(&answer, false);
    assert_eq!(outside.counter, Counter::ReplyTranslated);
    assert_eq!(outside.ends(), (service, client));

    let second = world.ingress(&tcp(client, service, Tcp::Ack, b"GET / HTTP/1.1\r\n"));
    assert_eq!(second.counter, Counter::ForwardedHit);
    assert_eq!(seen(&second.packet).payload, b"GET / HTTP/1.1\r\n");
    assert_eq!(world.flows()[0].state, "established");
}

#[rstest]
fn an_outside_client_is_masqueraded_and_receives_the_answers(#[values(IPV4, IPV6)] a: Addresses) {
    let world = World::new(&[Service::web(a)]);
    let (client, service, backend) = (a.outside_client(), a.service(), a.endpoint());

    let inside = world.ingress(&tcp(client, service, Tcp::Syn, b""));
    assert!(inside.marked);
    let out = world.egress(&inside.packet, true);
    assert_eq!((out.marked, out.counter), (false, Counter::Masqueraded));
    let source = out.src();
    assert_eq!((source.ip(), out.dst()), (a.node, backend));
    assert!(PortRanges::DEFAULT.contains(source.port()), "{source}");

    let again = world.forward(&tcp(client, service, Tcp::Syn, b""));
    assert_eq!(again.src(), source, "a flow keeps its masquerade port");

    let answer = world.ingress(&tcp(backend, source, Tcp::SynAck, b""));
    assert_eq!(answer.counter, Counter::ReplyUnmasqueraded);
    assert_eq!(answer.ends(), (backend, client));
    let outside = world.egress(&answer.packet, false);
    assert_eq!(outside.ends(), (service, client));
}

/// flannel masquerades such packets: they come from outside and go to other nodes' pods, with our
/// mark. Every CNI masquerades pods' packets to hosts, which have no mark.
#[rstest]
fn foreign_masqueraded_packets_with_a_flows_tuple_get_another_port(
    #[values(IPV4, IPV6)] a: Addresses,
    #[values(FORWARDED, UNMARKED)] context: Context,
) {
    let world = World::new(&[Service::web(a)]);
    let (client, backend) = (a.outside_client(), a.endpoint());
    let ours = world.forward(&tcp(client, a.service(), Tcp::Syn, b""));
    let shared = ours.src();
    assert_eq!(shared.ip(), a.node);

    // Not the flow's own SYN, seen once more.
    let syn = numbered(shared, backend, Tcp::Syn, (77, 0), b"");
    let theirs = world.egress_by(&syn, context);
    assert_eq!(theirs.counter, Counter::Masqueraded);
    let other = theirs.src();
    assert_eq!((other.ip(), theirs.dst()), (a.node, backend));
    assert_ne!(other.port(), shared.port());

    for (to, from) in [(other, shared), (shared, client)] {
        let answer = world.ingress(&tcp(backend, to, Tcp::SynAck, b""));
        assert_eq!(answer.dst(), from);
    }
    let next = world.egress_by(&tcp(shared, backend, Tcp::Ack, b""), context);
    assert_eq!(next.src(), other);

    let complaint = error(a.other_node_address, a.node, TOO_BIG, &next.packet);
    let inside = world.ingress(&complaint);
    // The sender's own port.
    expect_error(&inside, [a.other_node_address, a.node], [shared, backend]);
}

/// The context at egress of a packet with our mark that others have masqueraded.
const FORWARDED: Context = Context {
    mark: Marks::DEFAULT.masquerade,
    came_by: LOOPBACK,
    interface: 0,
    segment: 0,
    note: 0,
};

const UNMARKED: Context = Context {
    mark: 0,
    ..FORWARDED
};

#[rstest]
fn foreign_masqueraded_packets_reuse_the_tuple_of_a_closed_flow(
    #[values(IPV4, IPV6)] a: Addresses,
    #[values(false, true)] backend_first: bool,
) {
    let mut world = World::new(&[Service::web(a)]);
    world.configure(|settings| settings.masquerade_ports = PortRanges([5000, 5003, 0, 0]));
    let (service, backend) = (a.service(), a.endpoint());
    // Every masquerade port has a flow.
    let flows: Vec<_> = (40_000..40_004)
        .map(|port| {
            let client = at(a.outsider, port);
            let syn = world.forward(&tcp(client, service, Tcp::Syn, b""));
            let source = syn.src();
            world.forward(&tcp(backend, source, Tcp::SynAck, b""));
            world.forward(&tcp(client, service, Tcp::Ack, b""));
            (client, source)
        })
        .collect();
    let (client, shared) = flows[0];
    let begin = || world.egress_by(&tcp(shared, backend, Tcp::Syn, b""), FORWARDED);
    // Its answers would go to another client.
    let refused = (SHOT, Counter::DroppedNoMasqueradePort);
    assert_eq!(begin().fate(), refused);
    let ends = [(client, service), (backend, shared)];
    for n in [usize::from(backend_first), usize::from(!backend_first)] {
        let (from, to) = ends[n];
        world.forward(&tcp(from, to, Tcp::Fin, b""));
    }
    let syn = begin();
    assert_eq!(syn.src(), shared, "it is free");
    let answer = world.ingress(&tcp(backend, shared, Tcp::SynAck, b""));
    assert_eq!((answer.dst(), answer.counter), (shared, Counter::Untouched));
    let late = world.forward(&tcp(at(a.outsider, 40_010), service, Tcp::Syn, b""));
    assert_eq!(late.fate(), refused, "the port has theirs");
}

#[rstest]
fn a_flow_gets_no_port_that_a_foreign_masqueraded_connection_uses(
    #[values(IPV4, IPV6)] a: Addresses,
    #[values(FORWARDED, UNMARKED)] context: Context,
) {
    let world = World::new(&[Service::web(a)]);
    let (client, service, backend) = (at(a.outsider, 2000), a.service(), a.endpoint());
    let theirs = tcp(at(a.node, client.port()), backend, Tcp::Syn, b"");
    let passed = world.egress_by(&theirs, context);
    passed.expect_untouched(&theirs);
    let ours = world.forward(&tcp(client, service, Tcp::Syn, b""));
    assert_eq!(ours.counter, Counter::Masqueraded);
    assert_ne!(ours.src().port(), client.port());
}

#[rstest]
fn packets_masqueraded_at_a_vlan_interface_pass_the_one_below_unchanged(
    #[values(IPV4, IPV6)] a: Addresses,
) {
    let world = World::new(&[Service::web(a)]);
    let (client, service) = (a.outside_client(), a.service());
    for flags in [Tcp::Syn, Tcp::Syn, Tcp::Ack] {
        let above = world.forward(&tcp(client, service, flags, b""));
        assert_eq!(above.counter, Counter::Masqueraded);
        let passed = world.egress_by(&above.packet, UNMARKED);
        passed.expect_untouched(&above.packet);
    }
}

#[rstest]
fn the_configured_mark_bit_makes_egress_masquerade(#[values(IPV4, IPV6)] a: Addresses) {
    // Bit 15 is normally the drop mark's; the two marks exchange their bits.
    let marks = Marks::with_masquerade_bit(15).expect("a bit");
    let world = World::with(|options| options.marks = marks, &[Service::web(a)]);
    let (client, service) = (a.outside_client(), a.service());
    let inside = world.ingress(&tcp(client, service, Tcp::Syn, b""));
    assert!(inside.marked);
    let out = world.egress_with(&inside.packet, marks.masquerade);
    assert_eq!((out.marked, out.counter), (false, Counter::Masqueraded));
    // A mark alone drops nothing: a process may have set it.
    let passed = world.egress_with(&inside.packet, marks.drop);
    assert_eq!(passed.fate(), (NEXT, Counter::Untouched));
}

#[rstest]
#[case::usual(14)]
#[case::that_other_bit(12)]
fn when_foreign_rules_masquerade_by_our_mark_ingress_sets_another_mark(
    #[case] bit: u32,
    #[values(IPV4, IPV6)] a: Addresses,
) {
    let marks = Marks::with_masquerade_bit(bit).expect("a bit");
    let mut world = World::with(|options| options.marks = marks, &[Service::web(a)]);
    world.configure(|settings| settings.flags |= Settings::OTHERS_MASQUERADE);
    let (client, service) = (a.outside_client(), a.service());
    let inside = world.ingress(&tcp(client, service, Tcp::Syn, b""));
    let beside = Marks::beside_rules(marks.masquerade);
    assert_eq!((inside.mark, beside & marks.masquerade), (beside, 0));
    let out = world.egress_with(&inside.packet, beside);
    assert_eq!((out.mark, out.counter), (0, Counter::Masqueraded));
    // A packet that left ingress before the change may reach egress after it.
    let out = world.egress_with(&inside.packet, marks.masquerade);
    assert_eq!((out.mark, out.counter), (0, Counter::Masqueraded));
}

#[rstest]
fn replies_with_a_foreign_mark_are_translated(#[values(IPV4, IPV6)] a: Addresses) {
    let world = World::new(&[Service::web(a)]);
    let (client, service, backend) = a.ends();
    let first = world.forward(&tcp(client, service, Tcp::Syn, b""));
    assert_eq!(first.dst(), backend);
    let marks = Marks::DEFAULT;
    for mark in [marks.masquerade, marks.drop, marks.masquerade | marks.drop] {
        let out = world.egress_with(&tcp(backend, client, Tcp::SynAck, b""), mark);
        assert_eq!(out.fate(), (NEXT, Counter::ReplyTranslated));
        assert_eq!(out.src(), service);
        assert_eq!(out.marked, mark & marks.masquerade != 0, "the mark is left");
        // Ingress passes this packet to a backend's port, but no flow is masqueraded.
        let on = world.egress_with(&tcp(client, backend, Tcp::Ack, b""), mark);
        assert_eq!(on.fate(), (NEXT, Counter::Untouched));
    }
}

#[rstest]
fn sctp_has_the_right_checksum_when_its_port_is_translated(#[values(IPV4, IPV6)] a: Addresses) {
    let (client, service) = (a.client(), a.service());
    let world = World::new(&[Service::over(Protocol::SCTP, a)]);
    let transport = a.transport();
    let inside = world.ingress(&sctp(client, service, true));
    assert_eq!(inside.fate(), (NEXT, Counter::ForwardedNew));
    let mut bytes = inside.packet[transport..].to_vec();
    let crc: [u8; 4] = bytes[8..12].try_into().expect("four bytes");
    bytes[8..12].fill(0);
    assert_eq!(u32::from_le_bytes(crc), crc32c(&bytes));
    assert_eq!(bytes[2..4], 8080_u16.to_be_bytes());

    // The device fills it in.
    let unfilled = world.ingress(&sctp(client, service, false));
    assert_eq!(unfilled.packet[transport + 8..transport + 12], [0; 4]);
}

#[test]
fn a_udp_packet_without_a_checksum_is_translated_without_one() {
    let a = IPV4;
    let world = World::new(&[Service::over(Protocol::UDP, a)]);
    let mut packet = udp(a.client(), a.service(), b"?");
    packet[40..42].fill(0);
    let inside = world.ingress(&packet);
    assert_eq!(inside.dst(), a.endpoint());
    assert_eq!(inside.packet[40..42], [0, 0]);
}

#[rstest]
fn udp_answers_to_the_nodes_address_are_not_forwarded_to_a_service_there(
    #[values(IPV4, IPV6)] a: Addresses,
    #[values(false, true)] is_external_ip: bool,
    #[values(false, true)] is_masqueraded_pod: bool,
) {
    // The frontend is a node port, or an external IP that is the node's address.
    let (address, port, kind) = if is_external_ip {
        (Some(a.node), 8444, FrontendKind::ExternalIp)
    } else {
        (None, 30_514, FrontendKind::NodePort)
    };
    let service = |is_served: bool| {
        let log = Service::over(Protocol::UDP, a);
        if is_served {
            log.with(address, port, kind, 0)
        } else {
            log
        }
    };
    let mut world = World::new(&[service(true)]);
    let (own, peer) = (at(a.node, port), at(a.outsider, 9999));
    let came_by = u32::from(is_masqueraded_pod && !a.is_v6());
    let context = Context {
        came_by,
        ..Context::default()
    };
    let (request, answer) = (udp(own, peer, b"?"), udp(peer, own, b"!"));
    let sent = world.egress_by(&request, context);
    assert_eq!(sent.counter, Counter::Untouched);
    assert_eq!(world.ingress(&answer).counter, Counter::UntouchedFlow);
    let other = udp(at(a.outsider, 9998), own, b"?");
    assert_eq!(world.ingress(&other).counter, Counter::ForwardedNew);

    // While no service is at the port, a process of the node answers. It does not keep the client
    // when the service is back.
    let client = at(a.outsider, 9997);
    let (request, answer) = (udp(client, own, b"?"), udp(own, client, b"!"));
    world.apply(&service(false));
    assert_eq!(world.ingress(&request).counter, Counter::Untouched);
    assert_eq!(world.egress(&answer, false).counter, Counter::Untouched);
    world.apply(&service(true));
    assert_eq!(world.ingress(&request).counter, Counter::ForwardedNew);
}
