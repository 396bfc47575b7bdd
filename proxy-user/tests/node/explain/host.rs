// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Obstacles on the host: each is set up, found by `explain`, and removed again.

use std::{
    net::TcpListener,
    os::fd::AsFd,
    path::Path,
    time::{Duration, Instant},
};

use datapath::maps::pins::links_dir;
use lab::node::foreign::{ChainPosition, END, Foreign};
use linux::{detach, get_pinned};

use super::{CLIENT, OUTSIDE, Said, ask, outside};
use crate::{objects::service, world::World};

const CART: &str = "172.30.1.1:80";

/// Builds a node with a service, served by programs that no agent repairs.
fn build() -> World {
    let world = World::build();
    world.write("cart.yaml", &service("cart", "172.30.1.1"));
    assert!(world.start_by_stack(7).stop().success());
    ask(&world, CLIENT, CART, &[]).is_clean();
    assert!(world.connect(CART).is_ok());
    world
}

fn tool(world: &World, program: &str, arguments: &[&str]) -> String {
    let printed = world.node().feed(program, arguments, "");
    printed.unwrap_or_else(|error| panic!("{error:#}"))
}

fn nft(world: &World, rules: &str) {
    let fed = world.node().feed("nft", &["-f", "-"], rules);
    fed.expect("rules");
}

/// Asks about a connection, makes it, and expects both results to agree.
#[track_caller]
fn agree(world: &World, flags: &[&str]) -> Said {
    let said = ask(world, CLIENT, CART, flags);
    let connected = world.connect(CART);
    assert_eq!(said.is_answered(), connected.is_ok(), "{:#}", said.report);
    said
}

/// Sets up an obstacle that must be found and must stop the connection, then removes it.
#[track_caller]
fn stops(world: &World, words: &str, make: impl FnOnce(), undo: impl FnOnce()) {
    make();
    let said = agree(world, &[]);
    said.finds("in-the-way", words);
    assert_eq!(said.status, 3);
    undo();
    agree(world, &[]).is_clean();
}

/// By default, too, the stack judges how a connection begins.
#[test]
fn a_rule_that_stops_beginnings_is_found_by_default() {
    let world = World::build();
    world.write("cart.yaml", &service("cart", "172.30.1.1"));
    let _agent = world.start(7);
    let said = ask(&world, CLIENT, CART, &[]);
    let path = |said: &Said| said.report["path"].as_str().map(str::to_owned);
    assert!(path(&said).is_some_and(|path| path.contains("nothing judges")));
    nft(
        &world,
        "table inet later {\n chain forward { type filter hook forward priority 0; policy drop;\n }\n}\n",
    );
    let begun = Instant::now();
    while world.connect(CART).is_ok() {
        assert!(begun.elapsed() < Duration::from_secs(20));
    }
    let said = agree(&world, &[]);
    said.finds("in-the-way", "forward");
    assert!(path(&said).is_some_and(|path| path.starts_with("by the node's stack")));
}

#[test]
fn whatever_stops_packets_beyond_portolan_is_found() {
    let world = build();
    let node = world.node();
    let ip = |line: &str| node.ip(&format!("{line}\n")).expect("changed");
    let set = |name: &str, value: &str| node.set(&[(name, value)]).expect("set");
    let chain = "add table inet firewall
add chain inet firewall forward { type filter hook forward priority 0; policy drop; }
";
    stops(
        &world,
        "chain inet firewall forward: its policy drops what is forwarded, and it has no rule",
        || nft(&world, chain),
        || nft(&world, "delete table inet firewall\n"),
    );
    stops(
        &world,
        "chain ip filter FORWARD",
        || {
            drop(tool(
                &world,
                "iptables-nft",
                &["--policy", "FORWARD", "DROP"],
            ))
        },
        || {
            drop(tool(
                &world,
                "iptables-nft",
                &["--policy", "FORWARD", "ACCEPT"],
            ))
        },
    );
    stops(
        &world,
        "chain FORWARD of iptables-legacy",
        || {
            drop(tool(
                &world,
                "iptables-legacy",
                &["--policy", "FORWARD", "DROP"],
            ))
        },
        || {
            drop(tool(
                &world,
                "iptables-legacy",
                &["--policy", "FORWARD", "ACCEPT"],
            ))
        },
    );
    stops(
        &world,
        "net.ipv4.ip_forward: is 0",
        || set("ipv4/ip_forward", "0"),
        || set("ipv4/ip_forward", "1"),
    );
    let server = world.server_interface();
    for kind in ["blackhole", "unreachable", "prohibit"] {
        stops(
            &world,
            &format!("endpoint 10.40.1.20:8080: a route of kind {kind} ends it"),
            || {
                ip("route del 10.40.1.20/32");
                ip(&format!("route add {kind} 10.40.1.20/32"));
            },
            || {
                ip(&format!("route del {kind} 10.40.1.20/32"));
                ip(&format!("route add 10.40.1.20/32 dev {server}"));
            },
        );
    }
    stops(
        &world,
        "endpoint 10.40.1.20:8080: there is no route",
        || ip("route del 10.40.1.20/32"),
        || ip(&format!("route add 10.40.1.20/32 dev {server}")),
    );
}

#[test]
fn whatever_differs_without_stopping_packets_is_found() {
    let world = build();
    let accepts = "add table inet firewall
add chain inet firewall forward { type filter hook forward priority 0; policy drop; }
add rule inet firewall forward accept
";
    nft(&world, accepts);
    agree(&world, &[]).finds("differs", "unless one of its rules accepts it");
    nft(&world, "delete table inet firewall\n");

    let left = "add table ip kube-proxy
add chain ip kube-proxy services { type nat hook prerouting priority dstnat; }
add table ip nat
add chain ip nat KUBE-SERVICES
";
    nft(&world, left);
    let said = agree(&world, &[]);
    said.finds("differs", "rules of kube-proxy's mode nftables");
    said.finds("differs", "KUBE-SERVICES in table ip nat: they stay");
    nft(&world, "delete table ip kube-proxy\ndelete table ip nat\n");

    let server = world.server_interface();
    let mtu = |bytes: &str| {
        let line = format!("link set {server} mtu {bytes}\n");
        world.node().ip(&line).expect("changed");
    };
    mtu("1300");
    agree(&world, &[]).finds(
        "differs",
        "the way has an MTU of 1300, the client's interface one of 1500",
    );
    mtu("1500");

    let failed = format!("neighbour replace 10.40.1.20 dev {server} nud failed\n");
    world.node().ip(&failed).expect("changed");
    agree(&world, &[]).finds("differs", "10.40.1.20 was asked for in vain a moment ago");

    // A connection that another proxy has translated for the same client, and that is still open.
    let rules = "add table ip other
add chain ip other services { type nat hook prerouting priority dstnat; }
add rule ip other services ip daddr 172.30.1.7 tcp dport 80 dnat to 10.40.1.20:8080
";
    nft(&world, rules);
    let open = world.connect("172.30.1.7:80").expect("the other serves");
    let said = ask(&world, CLIENT, "172.30.1.7:80", &[]);
    said.finds(
        "differs",
        "that somebody else translates, for example 10.40.1.10:",
    );
    drop(open);
    nft(&world, "delete table ip other\n");

    let client = world.client_interface();
    let foreign =
        Foreign::new(world.node(), &client, false, ChainPosition::Last, END).expect("attached");
    agree(&world, &[]).finds("note", "runs behind portolan's at ingress");
    drop(foreign);
    let foreign =
        Foreign::new(world.node(), &client, false, ChainPosition::First, END).expect("attached");
    let said = ask(&world, CLIENT, CART, &[]);
    said.finds("differs", "runs before portolan's at ingress");
    assert!(world.connect(CART).is_err(), "it ends the chain");
    let said = ask(&world, CLIENT, CART, &["--probe"]);
    said.finds(
        "in-the-way",
        "ends the chain, so portolan does not see the packet",
    );
    assert!(!said.is_answered());
    drop(foreign);
    agree(&world, &[]).is_clean();
}

/// Detaches a pinned link at once; removing its pin would detach it some time later.
fn detach_at(pin: &Path) {
    let link = get_pinned(pin, false).expect("a link");
    detach(link.as_fd()).expect("detached");
}

#[test]
fn a_program_that_is_missing_is_named_with_its_place() {
    let world = build();
    for (interface, hook) in [
        (world.client_interface(), "ingress"),
        (world.client_interface(), "egress"),
    ] {
        let index = world
            .node()
            .enter(|| nix::net::if_::if_nametoindex(interface.as_str()));
        let index = index.expect("the node").expect("the interface");
        let pin = links_dir(world.pins()).join(format!("{index}-{hook}"));
        detach_at(&pin);
        let said = agree(&world, &[]);
        said.finds(
            "in-the-way",
            &format!("no program of portolan's is attached at {hook}"),
        );
        assert_eq!(said.status, 3);
        // A new agent attaches the program again.
        assert!(world.start_by_stack(7).stop().success());
        agree(&world, &[]).is_clean();
    }
    detach_at(&links_dir(world.pins()).join("cgroup-connect_v4"));
    let said = ask(&world, "node", CART, &[]);
    said.finds("in-the-way", "socket hooks: not attached: connect_v4");
    assert!(world.connect_from_node(CART).is_err());
}

#[test]
fn an_endpoint_that_does_not_listen_is_found_by_a_probe() {
    let world = World::build();
    world.write(
        "deaf.yaml",
        &service("deaf", "172.30.1.6").replace("port: 8080", "port: 8081"),
    );
    assert!(world.start_by_stack(7).stop().success());
    let to = "172.30.1.6:80";
    ask(&world, CLIENT, to, &[]).is_clean();
    let said = ask(&world, CLIENT, to, &["--probe"]);
    said.finds(
        "in-the-way",
        "endpoint 10.40.1.20:8081: a connection from this node failed: refused",
    );
    assert!(!said.is_answered() && world.connect(to).is_err());
    let listener = world
        .server()
        .enter(|| TcpListener::bind("10.40.1.20:8081"));
    let _listener = listener.expect("enter the pod").expect("a listener");
    ask(&world, CLIENT, to, &["--probe"]).is_clean();
}

#[test]
fn a_client_that_comes_in_by_another_interface_than_its_route_is_found_with_strict_rp_filter() {
    let world = World::build();
    world.write("cart.yaml", &service("cart", "172.30.1.1"));
    let outside = outside(&world);
    assert!(world.start_by_stack(7).stop().success());
    let node_port = "10.40.0.1:30001";
    ask(&world, OUTSIDE, node_port, &[]).is_clean();
    let interface = world.interface_to(OUTSIDE);
    // The node's route to the client uses another interface than the client's packets do.
    let pod = world.client_interface();
    world
        .node()
        .ip(&format!("route change {OUTSIDE}/32 dev {pod}\n"))
        .expect("changed");
    let strict = [("ipv4/conf/all/rp_filter", "1")];
    world.node().set(&strict).expect("set");
    let said = ask(&world, OUTSIDE, node_port, &["--interface", &interface]);
    said.finds("in-the-way", "rp_filter: is 1 (strict)");
    assert_eq!(said.status, 3);
    assert!(crate::connection::Open::connect(&outside, node_port).is_err());
    world
        .node()
        .ip(&format!("route change {OUTSIDE}/32 dev {interface}\n"))
        .expect("changed");
    assert!(crate::connection::Open::connect(&outside, node_port).is_ok());
    ask(&world, OUTSIDE, node_port, &["--interface", &interface]).is_clean();
}
