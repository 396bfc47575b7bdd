// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Next hops that do not answer, links that are down, and ports of bridges.

use std::{net::TcpListener, thread};

use lab::node::netns::NetNs;

use super::{CLIENT, OUTSIDE, Said, ask, outside};
use crate::{
    connection::{Open, echo},
    objects::{Service, endpoint},
    world::World,
};

const CART: &str = "172.30.1.1:80";
/// A pod behind a bridge.
const BRIDGED: &str = "10.40.2.10";

/// Asks about a connection that must not be answered, for this reason.
#[track_caller]
fn stops(world: &World, from: &str, to: &str, words: &str) -> Said {
    let said = ask(world, from, to, &[]);
    said.finds("in-the-way", words);
    assert_eq!(said.status, 3, "{:#}", said.report);
    said
}

#[test]
fn explain_names_an_address_that_is_nobodys_and_a_pods_link_that_is_down() {
    let world = World::serving();
    assert!(world.start_by_stack(7).stop().success());
    ask(&world, CLIENT, CART, &[]).is_clean();
    let (client, server) = (world.client_interface(), world.server_interface());
    let forget = || {
        for (pod, interface) in [(CLIENT, &client), ("10.40.1.20", &server)] {
            world.ip(&format!(
                "neighbour replace {pod} dev {interface} nud failed"
            ));
        }
    };
    forget();
    ask(&world, CLIENT, CART, &[]).is_clean();

    let inside = |pod: &NetNs, command: &str| pod.ip(&format!("{command}\n")).expect("changed");
    inside(world.server(), "address del 10.40.1.20/32 dev eth0");
    forget();
    let nobody = format!("nobody answers for 10.40.1.20 at {server}: it was asked for by ARP");
    stops(
        &world,
        CLIENT,
        CART,
        &format!("endpoint 10.40.1.20:8080: {nobody}"),
    );
    assert!(world.connect(CART).is_err());
    inside(world.server(), "address add 10.40.1.20/32 dev eth0");
    ask(&world, CLIENT, CART, &[]).is_clean();

    // A next hop that has answered lately is believed, but not with --probe.
    inside(world.server(), "address del 10.40.1.20/32 dev eth0");
    let said = ask(&world, CLIENT, CART, &["--probe"]);
    said.finds("in-the-way", &nobody);
    inside(world.server(), "address add 10.40.1.20/32 dev eth0");

    inside(world.server(), "link set eth0 down");
    stops(
        &world,
        CLIENT,
        CART,
        &format!("endpoint 10.40.1.20:8080: interface {server} has no carrier"),
    );
    assert!(world.connect(CART).is_err());
    inside(world.client(), "link set eth0 down");
    stops(
        &world,
        CLIENT,
        CART,
        &format!("the client: interface {client} has no carrier"),
    );
}

/// Builds a node with a service whose endpoint is behind the bridge br0, at its port port0.
fn bridged() -> (World, NetNs) {
    let world = World::build();
    let pod = NetNs::new("bridged").expect("run as root");
    world.ip(&format!(
        "link add br0 type bridge\naddress add 10.40.2.1/24 dev br0\nlink set br0 up\nlink add port0 type veth peer name eth0 netns {}\nlink set port0 master br0 up",
        pod.path()
    ));
    let inside = format!(
        "link set lo up\naddress add {BRIDGED}/24 dev eth0\nlink set eth0 up\nroute add default via 10.40.2.1\n"
    );
    pod.ip(&inside).expect("a pod");
    let listener = pod.enter(|| TcpListener::bind((BRIDGED, 8080)));
    let listener = listener.expect("enter the pod").expect("a listener");
    thread::spawn(move || listener.incoming().flatten().for_each(echo));
    let cart = Service::new("cart", "172.30.1.1");
    world.write("cart.yaml", cart.endpoints(vec![endpoint(BRIDGED)]));
    (world, pod)
}

#[test]
fn explain_asks_for_the_port_of_a_bridge() {
    let (world, pod) = bridged();
    let outside = outside(&world);
    assert!(world.start_by_stack(7).stop().success());
    let node_port = "10.40.0.1:30001";
    let forget = || world.ip("neighbour flush dev br0\nlink set br0 type bridge fdb_flush");
    forget();
    let said = super::explain(&world, OUTSIDE, node_port, &[]);
    said.is_clean();
    assert_eq!(said.report["dryRun"]["steps"][1]["interface"], "port0");
    assert!(Open::connect(&outside, node_port).is_ok());
    // The neighbour is known, and the bridge has forgotten its port.
    world.ip("link set br0 type bridge fdb_flush");
    let said = super::explain(&world, OUTSIDE, node_port, &[]);
    assert_eq!(said.report["dryRun"]["steps"][1]["interface"], "port0");
    forget();
    let said = ask(&world, BRIDGED, CART, &[]);
    assert_eq!(said.report["hook"], "a packet that comes in by port0");

    stops(
        &world,
        "10.40.2.99",
        CART,
        "the client: nobody answers for 10.40.2.99 at br0: it was asked for by ARP",
    );
    pod.ip("link set eth0 down\n").expect("changed");
    stops(
        &world,
        CLIENT,
        CART,
        &format!("endpoint {BRIDGED}:8080: none of the ports of bridge br0 is up"),
    );
    world.ip(
        "link add other type veth peer name far\nlink set far up\nlink set other master br0 up",
    );
    let words = format!("endpoint {BRIDGED}:8080: nobody answers for {BRIDGED} at br0");
    let said = stops(&world, CLIENT, CART, &words);
    said.finds("in-the-way", "of the bridge's ports port0 is down");
    assert!(world.connect(CART).is_err());
}
