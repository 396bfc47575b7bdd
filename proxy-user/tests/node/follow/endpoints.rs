// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Endpoints that get the packet and do not answer.

use std::net::{TcpListener, TcpStream};

use super::{CART, Node};
use crate::{objects::Service, world::World};

/// Makes a service with this target port, whose only endpoint is the server pod.
fn targets(world: &World, name: &str, address: &str, port: u16) -> String {
    world.write(
        &format!("{name}.yaml"),
        Service::new(name, address).target(port),
    );
    assert!(world.start_by_stack(7).stop().success());
    format!("{address}:80")
}

#[test]
fn a_port_without_a_listener_and_one_on_loopback_only_are_named() {
    let node = Node::build();
    let world = &node.world;
    let deaf = targets(world, "deaf", "172.30.1.6", 8081);
    let said = node.follow(&deaf);
    said.was_lost("the endpoint 10.40.1.20:8081: no process listens at that port");
    // The port that it should have been.
    said.was_lost("listened at are 8080");
    let inside = world.server().enter(|| TcpListener::bind("127.0.0.1:8081"));
    let inside = inside.expect("enter the pod").expect("a listener");
    node.follow(&deaf).was_lost("only at 127.0.0.1");
    drop(inside);
    world.serve(("10.40.1.20", 8081));
    node.follow(&deaf).was_answered();
}

#[test]
fn full_queues_of_connections_are_named() {
    let node = Node::build();
    let world = &node.world;
    let full = targets(world, "full", "172.30.1.7", 8082);
    for cookies in ["1", "0"] {
        let set = world.server().set(&[
            ("ipv4/tcp_syncookies", cookies),
            ("core/somaxconn", "1"),
            ("ipv4/tcp_max_syn_backlog", "1"),
        ]);
        set.expect("the pod's parameters");
        let listener = world
            .server()
            .enter(|| TcpListener::bind("10.40.1.20:8082"));
        let listener = listener.expect("enter the pod").expect("a listener");
        // Nobody accepts; the queue takes two.
        let connect = || TcpStream::connect("10.40.1.20:8082");
        let open: Vec<_> = (0..2)
            .map(|_| {
                world
                    .client()
                    .enter(connect)
                    .expect("enter the pod")
                    .expect("queued")
            })
            .collect();
        node.follow(&full)
            .was_lost("the endpoint 10.40.1.20:8082: its queue of connections is full");
        drop((open, listener));
    }
}

#[test]
fn a_rule_in_the_endpoints_own_network_namespace_is_named() {
    let node = Node::build();
    let nft = |rules: &str| {
        let fed = node.world.server().feed("nft", &["-f", "-"], rules);
        fed.expect("in the pod");
    };
    nft(
        "table inet own {\n chain input { type filter hook input priority 0; policy accept;\n tcp dport 8080 drop\n }\n}\n",
    );
    let said = node.follow(CART);
    said.was_lost("netfilter in the endpoint's network namespace");
    nft("delete table inet own\n");
    node.follow(CART).was_answered();
}
