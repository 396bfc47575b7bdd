// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Entries that only another processor or time leaves in the maps, and how many answers the node
//! gives by itself in a time. What is answered, and how, stands in tests/fuzz/cases.

use std::thread;

use linux::test_run;
use proxy_common::{Counter, FlowKind, Protocol, Settings, maps};
use rstest::rstest;

use crate::{
    frames::{Kind, Packet, Shape},
    packets::{NODE_MAC, Tcp, UDP, at, icmp, tcp, udp},
    service::{Addresses, IPV4, IPV6, Service},
    wire::Tuple,
    world::{REDIRECT, SHOT, World},
};

#[rstest]
fn crossing_fins_on_two_cpus_close_and_allow_eviction(#[values(*IPV4, *IPV6)] a: Addresses) {
    let world = World::new(&[Service::web(a)]);
    let (service, backend) = (a.service(), a.endpoint());
    for round in 0..20 {
        let clients = (0..40).map(|n| at(a.pod, 10_000 + round * 40 + n));
        let clients: Vec<_> = clients.collect();
        for client in &clients {
            world.ingress(&tcp(*client, service, Tcp::Syn, b""));
            world.egress(&tcp(backend, *client, Tcp::SynAck, b""));
            world.ingress(&tcp(*client, service, Tcp::Ack, b""));
            assert_eq!(world.state(*client, service), "established");
        }
        let [by_clients, by_backends] =
            ["ingress", "egress"].map(|name| world.loaded().program(name).expect("loaded"));
        thread::scope(|scope| {
            scope.spawn(|| {
                for client in &clients {
                    let fin = tcp(*client, service, Tcp::Fin, b"");
                    test_run(by_clients, &fin, &[], 1).expect("runs");
                }
            });
            for client in &clients {
                let fin = tcp(backend, *client, Tcp::Fin, b"");
                test_run(by_backends, &fin, &[], 1).expect("runs");
            }
        });
        // Those of the rounds before have made room: the table has 1024 entries.
        for client in &clients {
            assert_eq!(world.state(*client, service), "closed");
        }
    }
}

#[test]
fn a_reply_entry_without_an_original_entry_keeps_its_tuple_only_at_first() {
    let a = *IPV4;
    let (client, backend) = (a.client(), a.endpoint());
    let services = [("one", a.cluster_ip), ("two", a.other_cluster_ip)]
        .map(|(name, address)| Service::cluster_ip(name, Protocol::TCP, address, &[backend]));
    let world = World::new(&services);
    let connect = |to| world.ingress(&tcp(client, at(to, 80), Tcp::Syn, b"")).src();
    assert_eq!(connect(a.cluster_ip), client);
    // Another CPU has written the reply entry and is about to write the original entry.
    world.remove_flows(FlowKind::ORIGINAL);
    let second = connect(a.other_cluster_ip);
    assert_ne!(second, client);
    let answer = world.egress(&tcp(backend, second, Tcp::SynAck, b""));
    assert_eq!(answer.ends(), (at(a.other_cluster_ip, 80), client));
    world.remove_flows(FlowKind::ORIGINAL);
    // The other CPU never writes it.
    thread::sleep(std::time::Duration::from_millis(2_100));
    assert_eq!(connect(a.cluster_ip), client);
}

/// Two ends use each identification again, and the last fragment of a datagram may come first.
#[test]
fn ports_of_a_datagram_are_forgotten_when_the_kernel_would_no_longer_wait_for_it() {
    let a = *IPV4;
    let world = World::new(&[Service::over(Protocol::UDP, a)]);
    let [first, later] = [true, false].map(|is_first| Packet {
        tuple: Tuple::new(UDP, a.client(), a.service()),
        kind: Kind::Data,
        shape: Shape {
            payload: 32,
            fragment: Some((7, is_first)),
            ..Shape::default()
        },
    });
    let [first, later] = [first, later].map(|packet| packet.frame(NODE_MAC, true));
    assert_eq!(world.ingress(&first).counter, Counter::ForwardedNew);
    for age in 0..2 {
        let outcome = world.ingress(&later);
        assert_eq!(outcome.counter, Counter::ForwardedHit, "{age}");
        world.age_fragments();
    }
    assert_eq!(world.ingress(&later).counter, Counter::DroppedFragment);
    // Another proxy may know the datagram.
    world.store(maps::DRAINED, 0, maps::generation::DRAINED);
    world.ingress(&later).expect_untouched(&later);
}

#[rstest]
fn answers_to_rejected_packets_and_to_pings_are_rate_limited(#[values(false, true)] pings: bool) {
    let a = *IPV4;
    let mut world = World::new(&[Service::over(Protocol::UDP, a).backed_by(&[])]);
    world.configure(|settings| settings.flags |= Settings::ANSWER_PING);
    let packet = match pings {
        true => icmp(a.outsider, a.cluster_ip, &[8, 0, 0, 0, 0, 7, 0, 1]),
        false => udp(a.client(), a.service(), b"?"),
    };
    // More than a burst on every CPU and what comes back meanwhile.
    let verdicts: Vec<_> = (0..6_000).map(|_| world.ingress_quietly(&packet)).collect();
    assert!(verdicts.contains(&REDIRECT) && verdicts.contains(&SHOT));
}
