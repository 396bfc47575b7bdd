// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Routes, sources, neighbours, links and kernel parameters that lose packets.

use super::{CART, CLIENT, Node, follow};
use crate::{
    explain::{OUTSIDE, outside},
    repair::detach,
    world::World,
};

const NODE_PORT: &str = "10.40.0.1:30001";

#[test]
fn routes_rules_and_forwarding_that_lose_packets_are_named() {
    let node = Node::build();
    let server = node.world.server_interface();
    let none = "there is no route for it, or one that refuses it";
    let back = |world: &World| world.ip(&format!("route replace 10.40.1.20/32 dev {server}"));
    for kind in ["blackhole", "unreachable", "prohibit"] {
        node.names(
            none,
            |world| {
                world.ip(&format!(
                    "route del 10.40.1.20/32\nroute add {kind} 10.40.1.20/32"
                ))
            },
            |world| {
                world.ip(&format!("route del {kind} 10.40.1.20/32"));
                back(world);
            },
        );
    }
    node.names(none, |world| world.ip("route del 10.40.1.20/32"), back);
    node.names(
        none,
        |world| world.ip(&format!("rule add from {CLIENT} blackhole")),
        |world| world.ip(&format!("rule del from {CLIENT} blackhole")),
    );
    node.names(
        "the kernel",
        |world| world.set("ipv4/ip_forward", "0"),
        |world| world.set("ipv4/ip_forward", "1"),
    );
}

#[test]
fn a_silent_neighbour_a_link_that_is_down_and_an_expired_hop_limit_are_named() {
    let node = Node::build();
    let server = node.world.server_interface();
    let in_server = |world: &World, batch: &str| {
        world
            .server()
            .ip(&format!("{batch}\n"))
            .expect("in the pod");
    };
    let forget = |world: &World| world.ip(&format!("neighbour flush dev {server}"));
    node.names(
        "the next hop does not answer for its address",
        |world| {
            in_server(world, "link set eth0 arp off");
            forget(world);
        },
        |world| {
            in_server(world, "link set eth0 arp on");
            forget(world);
        },
    );
    node.names(
        &format!("interface {server}"),
        |world| in_server(world, "link set eth0 down"),
        |world| {
            in_server(
                world,
                "link set eth0 up\nroute replace 169.254.1.1/32 dev eth0\nroute replace default via 169.254.1.1 dev eth0",
            );
            forget(world);
        },
    );
    let hops = |world: &World, count: &str| {
        let set = world.client().set(&[("ipv4/ip_default_ttl", count)]);
        set.expect("the pod's parameter");
    };
    node.names(
        "its hop limit has expired",
        |world| hops(world, "1"),
        |world| hops(world, "64"),
    );
}

#[test]
fn a_client_that_cannot_send_is_named() {
    let node = Node::by_socket();
    let in_client = |world: &World, batch: &str| {
        world
            .client()
            .ip(&format!("{batch}\n"))
            .expect("in the pod");
    };
    node.names(
        "the client's own network stack: it does not send it",
        |world| in_client(world, "route del default"),
        |world| in_client(world, "route add default via 169.254.1.1 dev eth0"),
    );
}

#[test]
fn packets_of_an_outsider_are_followed_from_the_uplink() {
    let world = World::serving();
    let _outside = outside(&world);
    assert!(world.start_by_stack(7).stop().success());
    let interface = world.interface_to(OUTSIDE);
    let flags = ["--interface", interface.as_str()];
    let asked = |from: &str| follow(&world, from, NODE_PORT, &flags);
    asked("198.51.100.9").was_lost("there is no route");
    world.ip(&format!("route add 198.51.100.9/32 dev {interface}"));
    // Nobody has the address, so the answer is lost behind the node.
    asked("198.51.100.9").was_lost("the next hop does not answer");
    // The node's route to the client uses another interface than the client's packets do.
    let pod = world.client_interface();
    world.ip(&format!("route change 198.51.100.9/32 dev {pod}"));
    world.set("ipv4/conf/all/rp_filter", "1");
    asked("198.51.100.9").was_lost("reverse path filtering");
    world.set("ipv4/conf/all/rp_filter", "0");
    asked("127.0.0.9").was_lost("martian");
}

#[test]
fn a_missing_program_is_named_before_what_follows_from_it() {
    let node = Node::build();
    let world = &node.world;
    let index = world.index(&world.client_interface());
    detach(world, &format!("{index}-ingress"));
    let said = node.follow(CART);
    let summary = said.0["summary"].as_str().expect("a summary");
    assert!(
        summary.contains("no program of portolan's is attached at ingress"),
        "{:#}",
        said.0
    );
}
