// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packets that others have masqueraded or marked, and those that programs over old maps have
//! served while those over new maps take over, behind them. Others' without a flow's tuple, and
//! ours at two interfaces, stand in tests/fuzz/cases/others.txt.

use std::{thread::sleep, time::Duration};

use datapath::read::{Asked, By};
use proxy_common::{
    Counter, Protocol, Settings, maps,
    masquerade::{Marks, PortRanges},
};
use rstest::rstest;

use crate::{
    packets::{Tcp, addresses, at, ends, icmp, numbered, tcp, transport, transport_sum, udp},
    service::{Addresses, IPV4, IPV6, Service},
    world::{Context, LOOPBACK, NEXT, SHOT, World},
};

/// Our mark.
const MARK: u32 = Marks::DEFAULT.masquerade;

/// The context at egress of a packet with this mark that others have masqueraded. The default is
/// that of a packet of one of the node's own processes.
fn forwarded(mark: u32) -> Context {
    Context {
        mark,
        came_by: LOOPBACK,
        ..Context::default()
    }
}

/// flannel masquerades such packets: they come from outside and go to other nodes' pods, with our
/// mark. Every CNI masquerades pods' packets to hosts, which have no mark.
#[rstest]
fn foreign_masqueraded_packets_with_a_flows_tuple_get_another_port(
    #[values(*IPV4, *IPV6)] a: Addresses,
    #[values(forwarded(MARK), forwarded(0), Context::default())] context: Context,
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
    // Nobody else leaves with the port that theirs got.
    let syn = numbered(other, backend, Tcp::Syn, (7, 0), b"");
    let last = world.egress_by(&syn, context).src();
    assert!(![shared, other].contains(&last), "{last}");

    // An error about their packet, which is too big, quotes the sender's own port.
    let kind = if a.is_v6() { [2, 0] } else { [3, 4] };
    let message = [&kind[..], &[0, 0, 0, 0, 5, 120], &next.packet[14..]].concat();
    let between = (a.other_node_address, a.node);
    let error = world.ingress(&icmp(between.0, between.1, &message)).packet;
    assert_eq!(transport_sum(&error), 0, "the ICMP checksum");
    assert_eq!(addresses(&error), between);
    let quoted = [&error[..14], &error[transport(&error) + 8..]].concat();
    assert_eq!(ends(&quoted), (shared, backend));

    // The other way round: a flow gets no port that their connection has.
    let client = at(a.outsider, 2000);
    let theirs = tcp(at(a.node, 2000), backend, Tcp::Syn, b"");
    world.egress_by(&theirs, context).expect_untouched(&theirs);
    let ours = world.forward(&tcp(client, a.service(), Tcp::Syn, b""));
    assert_eq!(ours.counter, Counter::Masqueraded);
    assert_ne!(ours.src().port(), 2000);
}

#[rstest]
fn datagrams_with_a_flows_tuple_get_another_port(
    #[values(*IPV4, *IPV6)] a: Addresses,
    #[values(forwarded(MARK), Context::default())] context: Context,
) {
    let world = World::new(&[Service::over(Protocol::UDP, a)]);
    let (client, backend) = (a.outside_client(), a.endpoint());
    let shared = world.forward(&udp(client, a.service(), b"?")).src();
    world.forward(&udp(backend, shared, b"!"));
    let theirs = world.egress_by(&udp(shared, backend, b"?"), context);
    assert_eq!(theirs.counter, Counter::Masqueraded);
    assert_ne!(theirs.src(), shared);
    for (to, from) in [(theirs.src(), shared), (shared, client)] {
        assert_eq!(world.ingress(&udp(backend, to, b"!")).dst(), from);
    }
}

#[rstest]
fn foreign_masqueraded_packets_reuse_the_tuple_of_a_closed_flow(
    #[values(*IPV4, *IPV6)] a: Addresses,
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
    let begin = || world.egress_by(&tcp(shared, backend, Tcp::Syn, b""), forwarded(MARK));
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

/// The answers would be taken for requests to that node port.
#[rstest]
fn a_flow_is_never_masqueraded_with_a_node_ports_number(#[values(*IPV4, *IPV6)] a: Addresses) {
    let world = World::new(&[Service::over(Protocol::UDP, a).at_node_port(8444)]);
    let out = |port| world.forward(&udp(at(a.outsider, port), at(a.node, 8444), b"?"));
    for (own, is_kept) in [(8443, true), (8444, false)] {
        let source = out(own).src();
        assert_eq!((source.ip(), source.port() == own), (a.node, is_kept));
    }
}

/// Where foreign rules masquerade by our mark, ingress sets another one.
#[rstest]
#[case::the_drop_marks(15, false)]
#[case::usual(14, true)]
#[case::that_other_bit(12, true)]
fn packets_are_masqueraded_by_the_configured_mark_bit(
    #[case] bit: u32,
    #[case] others_masquerade: bool,
    #[values(*IPV4, *IPV6)] a: Addresses,
) {
    let marks = Marks::with_masquerade_bit(bit).expect("a bit");
    let mut world = World::with(|options| options.marks = marks, &[Service::web(a)]);
    let mut mark = marks.masquerade;
    if others_masquerade {
        world.configure(|settings| settings.flags |= Settings::OTHERS_MASQUERADE);
        mark = Marks::beside_rules(marks.masquerade);
        assert_eq!(mark & marks.masquerade, 0);
    }
    let inside = world.ingress(&tcp(a.outside_client(), a.service(), Tcp::Syn, b""));
    assert_eq!(inside.mark, mark);
    // A packet that left ingress before a change of the rules may reach egress after it.
    for mark in [mark, marks.masquerade] {
        let out = world.egress_with(&inside.packet, mark);
        assert_eq!((out.mark, out.counter), (0, Counter::Masqueraded));
    }
    // A mark alone drops nothing: a process may have set it.
    let passed = world.egress_with(&inside.packet, marks.drop);
    assert_eq!(passed.fate(), (NEXT, Counter::Untouched));
}

#[rstest]
fn replies_with_a_foreign_mark_are_translated(#[values(*IPV4, *IPV6)] a: Addresses) {
    let world = World::new(&[Service::web(a)]);
    let (client, service, backend) = a.ends();
    let first = world.forward(&tcp(client, service, Tcp::Syn, b""));
    assert_eq!(first.dst(), backend);
    let marks = Marks::DEFAULT;
    for mark in [marks.masquerade, marks.drop, marks.masquerade | marks.drop] {
        let out = world.egress_with(&tcp(backend, client, Tcp::SynAck, b""), mark);
        assert_eq!(out.fate(), (NEXT, Counter::ReplyTranslated));
        assert_eq!(out.src(), service);
        assert_eq!(out.mark, mark, "it is left");
        // Ingress passes this packet to a backend's port, but no flow is masqueraded.
        let on = world.egress_with(&tcp(client, backend, Tcp::Ack, b""), mark);
        assert_eq!(on.fate(), (NEXT, Counter::Untouched));
    }
}

/// The note of a packet that programs before these have served.
fn noted(note: u32) -> Context {
    Context {
        note,
        ..Context::default()
    }
}

#[rstest]
fn a_packet_of_earlier_programs_is_not_translated_again(#[values(*IPV4, *IPV6)] a: Addresses) {
    let world = World::new(&[Service::web(a)]);
    let (client, service, backend) = a.ends();
    let served = world.ingress(&tcp(client, service, Tcp::Syn, b""));
    // As in old maps, the flow's packet has become one as of the direct conversation.
    let translated = tcp(client, backend, Tcp::Syn, b"");
    let other = world.ingress(&translated).src();
    assert_ne!(other, client, "or this shows nothing");
    world.store(maps::DRAINED, 0, maps::generation::BEHIND);
    let passed = world.ingress_by(&translated, noted(served.note));
    passed.expect_untouched(&translated);
    assert_eq!(passed.note, served.note, "for other programs behind");
    let direct = world.ingress_by(&translated, noted(0));
    assert_eq!(direct.src(), other);
    // A flow that begins later avoids the tuple.
    let second = tcp(at(a.pod, 9), backend, Tcp::Syn, b"");
    world.ingress_by(&second, noted(served.note));
    let flow = world.ingress(&tcp(at(a.pod, 9), service, Tcp::Syn, b""));
    assert_ne!(flow.src(), at(a.pod, 9));
}

#[test]
fn an_answer_that_programs_before_these_have_translated_is_none_of_the_nodes_own() {
    let a = *IPV4;
    let world = World::new(&[Service::over(Protocol::UDP, a).at_node_port(30_080)]);
    let (client, node_port) = (a.outside_client(), at(a.node, 30_080));
    let question = world.forward(&udp(client, node_port, b"?"));
    let answer = udp(a.endpoint(), question.src(), b"!");
    let served = world.egress(&world.ingress(&answer).packet);
    let entries = world.all_flows().len();
    world.store(maps::DRAINED, 0, maps::generation::BEHIND);
    let to_another = udp(node_port, at(a.outsider, 9), b"!");
    world.egress_by(&to_another, noted(served.note));
    assert_eq!(world.all_flows().len(), entries);
}

#[test]
fn programs_to_which_no_agent_has_come_for_long_leave_what_begins_to_others() {
    let a = *IPV4;
    let (client, service, _) = a.ends();
    // The machine's first seconds.
    let over = maps::generation::serving_until(0, Some(0));
    let world = World::new(&[Service::web(a)]);
    world.ingress(&tcp(client, service, Tcp::Syn, b""));
    world.store(maps::DRAINED, 0, over);
    let known = world.ingress(&tcp(client, service, Tcp::Ack, b""));
    assert_eq!(known.counter, Counter::ForwardedHit);
    for kind in [Tcp::Syn, Tcp::Ack] {
        let new = tcp(at(a.pod, 9), service, kind, b"");
        world.ingress(&new).expect_untouched(&new);
    }
    // The client's next connection from the same port.
    let again = tcp(client, service, Tcp::Syn, b"");
    world.ingress(&again).expect_untouched(&again);
    drop(world);

    // Nothing ends a client's datagrams, so they go to others: a flow's frontend is checked.
    let world = World::new(&[Service::over(Protocol::UDP, a)]);
    let datagram = udp(client, service, b"?");
    assert_eq!(world.ingress(&datagram).counter, Counter::ForwardedNew);
    let asked = Asked {
        protocol: Protocol::UDP,
        client: client.ip(),
        client_port: client.port(),
        to: service,
        by: By::Interface(LOOPBACK),
    };
    let explain = || world.reader().explain(&asked).expect("read");
    let explained = || explain().expect("one family").counter;
    assert_eq!(explained(), Counter::ForwardedHit);
    world.store(maps::DRAINED, 0, over);
    assert_eq!(explained(), Counter::Untouched);
    sleep(Duration::from_millis(1100));
    world.ingress(&datagram).expect_untouched(&datagram);
    assert!(world.all_flows().is_empty());
}
