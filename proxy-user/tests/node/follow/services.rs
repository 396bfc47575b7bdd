// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Faults of services: endpoints that are not ready, elsewhere or dead, and clients that may not.

use std::{net::TcpStream, time::Duration};

use super::{CLIENT, Node, follow};
use crate::{
    explain::{OUTSIDE, outside, serve_also},
    objects::{Service, endpoint, pod_endpoint},
    world::at,
};

const PAY: &str = "172.30.1.2:80";
const STICKY: &str = "172.30.1.3:80";

/// A service whose only pod is ready or not.
fn pay(ready: bool) -> Service {
    let pod = pod_endpoint("10.40.1.20", "pay-7f", [ready, ready, false]);
    Service::new("pay", "172.30.1.2").endpoints(vec![pod])
}

fn sticky(addresses: &[&str]) -> Service {
    let endpoints = addresses.iter().map(|address| endpoint(address)).collect();
    Service::new("sticky", "172.30.1.3")
        .sticky()
        .endpoints(endpoints)
}

/// Has an agent write these services, and ends it.
fn write(node: &Node, services: Vec<Service>) {
    for service in services {
        node.world.write(&service.file(), service);
    }
    assert!(node.world.start_by_stack(7).stop().success());
}

#[test]
fn what_portolan_itself_refuses_is_named_with_the_outcome() {
    let node = Node::build();
    let outside = outside(&node.world);
    let interface = node.world.interface_to(OUTSIDE);
    let asked = |to: &str| follow(&node.world, OUTSIDE, to, &["--interface", &interface]);
    let login = |on: &str| Service::new("login", "172.30.1.5").local().on(on);
    let ranged = |range: &str| {
        let service = Service::new("ranged", "172.30.1.6").balanced("203.0.113.6");
        service.only_for(&[range])
    };
    write(
        &node,
        vec![pay(false), login("node-b"), ranged("192.0.2.0/24")],
    );
    node.follow(PAY).was_lost("rejected_no_endpoint");
    asked("10.40.0.1:30005").was_lost("dropped_no_local_endpoint");
    asked("203.0.113.6:80").was_lost("dropped_source_range");
    write(
        &node,
        vec![pay(true), login("node-a"), ranged("198.51.100.0/24")],
    );
    node.follow(PAY).was_answered();
    // The client outside resets what it has not asked for, so it asks by itself.
    for to in ["10.40.0.1:30005", "203.0.113.6:80"] {
        let connect = || TcpStream::connect_timeout(&at(to), Duration::from_secs(5));
        let connected = outside.enter(connect).expect("enter the host");
        assert!(connected.is_ok(), "{to}: {connected:?}");
    }
}

#[test]
fn a_dead_endpoint_that_affinity_holds_the_client_to_is_named() {
    let node = Node::build();
    serve_also(&node.world, "10.40.1.21");
    write(&node, vec![sticky(&["10.40.1.21"])]);
    assert!(node.world.connect(STICKY).is_ok(), "{CLIENT} is held to it");
    write(&node, vec![sticky(&["10.40.1.21", "10.40.1.20"])]);
    let server = node.world.server();
    server
        .ip("address del 10.40.1.21/32 dev eth0\n")
        .expect("its address goes");
    node.follow(STICKY)
        .was_lost("in the endpoint's network namespace");
    write(&node, vec![sticky(&["10.40.1.20"])]);
    node.follow(STICKY).was_answered();
}
