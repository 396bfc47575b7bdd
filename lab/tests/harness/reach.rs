// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests that the simulated node forwards like a real one, with both ways to join pods and both IP
//! families.

use std::{
    net::{IpAddr, SocketAddr},
    os::unix::fs::MetadataExt,
    time::Instant,
};

use lab::{
    node::{
        layout::Layout,
        topology::{Plumbing, Topology, UPLINK_PEER},
    },
    traffic::{
        capture::Capture,
        clients::Client,
        probe::{Answer, Outcome},
        servers::Servers,
    },
};
use proxy_common::Protocol;
use rstest::rstest;

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// Returns a layout with a node, two pods on it, other nodes and their pods, a client outside, and
/// addresses that no host has, of both IP families.
pub(crate) fn layout() -> Layout {
    Layout {
        node: ["192.168.40.2", "192.168.41.2", "fd00:c0::2"]
            .map(ip)
            .to_vec(),
        pods: [
            ["10.40.1.10", "fd00:40:0:1::10"],
            ["10.40.1.11", "fd00:40:0:1::11"],
        ]
        .map(|pod| pod.map(ip).to_vec())
        .to_vec(),
        remote: [
            "10.40.2.10",
            "10.40.1.12",
            "fd00:40:0:2::10",
            "192.168.42.3",
        ]
        .map(ip)
        .into(),
        outside: ["203.0.113.9", "2001:db8:113::9"].map(ip).into(),
        unowned: [
            "198.51.100.1",
            "10.40.1.99",
            "192.168.40.99",
            "2001:db8:51::1",
            "fd00:40:0:1::99",
        ]
        .map(ip)
        .into(),
    }
}

#[rstest]
fn every_host_reaches_every_other_with_its_own_source(
    #[values(Plumbing::Bridge, Plumbing::Routed)] plumbing: Plumbing,
    #[values(Protocol::TCP, Protocol::UDP, Protocol::SCTP)] protocol: Protocol,
) {
    let topology = Topology::build(layout(), plumbing).expect("topology");
    let servers = Servers::start().expect("servers");
    let layout = &topology.layout;
    let hosts: Vec<_> = layout
        .node
        .iter()
        .chain(layout.pods.iter().flatten())
        .chain(&layout.remote)
        .chain(&layout.outside)
        .copied()
        .collect();
    for server in &hosts {
        let at = SocketAddr::new(*server, 7000);
        let namespace = topology.namespace_of(*server).expect("a host");
        let _listening = servers.listen(namespace, protocol, at).expect("listen");
        for client in hosts
            .iter()
            .filter(|client| client.is_ipv4() == server.is_ipv4())
        {
            let namespace = topology.namespace_of(*client).expect("a host");
            let attempt = Client::new(namespace, *client)
                .call(protocol, at, 1000)
                .expect("call");
            let expected = Answer {
                by: at,
                seen: attempt.source,
                from: at,
                intact: true,
            };
            assert_eq!(
                attempt.outcome,
                Outcome::Answered(expected),
                "{client} -> {server}"
            );
            assert_eq!(attempt.source.ip(), *client);
        }
    }
}

#[rstest]
fn packets_to_an_unowned_address_leave_by_the_uplink(
    #[values(Plumbing::Bridge, Plumbing::Routed)] plumbing: Plumbing,
) {
    let topology = Topology::build(layout(), plumbing).expect("topology");
    let layout = &topology.layout;
    for nobody in &layout.unowned {
        let clients = [
            "203.0.113.9",
            "2001:db8:113::9",
            "10.40.1.10",
            "fd00:40:0:1::10",
            "192.168.40.2",
        ];
        for client in clients
            .map(ip)
            .iter()
            .filter(|client| client.is_ipv4() == nobody.is_ipv4())
        {
            let namespace = topology.namespace_of(*client).expect("a host");
            let to = SocketAddr::new(*nobody, 80);
            let capture = Capture::open(&topology.outside, UPLINK_PEER).expect("capture");
            let mut caller = Client::new(namespace, *client);
            caller.patience = std::time::Duration::from_millis(50);
            let attempt = caller.call(Protocol::UDP, to, 10).expect("call");
            assert_eq!(attempt.outcome, Outcome::Silence, "{client} -> {nobody}");
            let packets = capture.packets().expect("packets");
            assert!(
                packets.iter().any(|packet| packet.destination == to
                    && packet.source == attempt.source
                    && packet.payload == attempt.sent),
                "{client} -> {nobody}: {packets:?}"
            );
        }
    }
}

#[rstest]
fn a_topology_is_built_within_two_seconds_and_removed_on_drop(
    #[values(Plumbing::Bridge, Plumbing::Routed)] plumbing: Plumbing,
) {
    let began = Instant::now();
    let topology = Topology::build(layout(), plumbing).expect("topology");
    let took = began.elapsed();
    assert!(took.as_millis() < 2000, "took {took:?}");
    let path = topology.node.path();
    // The descriptor's number may belong to a file of another test by then.
    let namespace = || std::fs::metadata(&path).ok().map(|file| file.ino());
    let before = namespace();
    assert!(before.is_some());
    drop(topology);
    assert_ne!(namespace(), before, "{path} is still there");
}

#[rstest]
fn a_pod_is_reachable_at_once_after_it_is_replugged(
    #[values(Plumbing::Bridge, Plumbing::Routed)] plumbing: Plumbing,
    #[values("10.40.1", "fd00:40:0:1:")] subnet: &str,
) {
    let topology = Topology::build(layout(), plumbing).expect("topology");
    let servers = Servers::start().expect("servers");
    let at = |last: u8| {
        let separator = if subnet.contains(':') { ":" } else { "." };
        ip(&format!("{subnet}{separator}{last}"))
    };
    let (client, server) = (at(10), SocketAddr::new(at(11), 7000));
    for round in 0..3 {
        let _listening = servers
            .listen(&topology.pods[1], Protocol::TCP, server)
            .expect("listen");
        let attempt = Client::new(&topology.pods[0], client)
            .call(Protocol::TCP, server, 10)
            .expect("call");
        let outcome = attempt.outcome;
        assert!(
            matches!(outcome, Outcome::Answered(_)),
            "{round}: {outcome:?}"
        );
        topology.unplug(1).expect("unplugged");
        topology.plug(1).expect("plugged");
    }
}
