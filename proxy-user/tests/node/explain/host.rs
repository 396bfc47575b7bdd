// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Obstacles on the host: each is set up, found by `explain`, and removed again.

use std::time::{Duration, Instant};

use lab::node::foreign::ChainPosition;

use super::{CLIENT, OUTSIDE, Said, ask, outside};
use crate::{connection::Open, objects::Service, repair::detach, world::World};

const CART: &str = "172.30.1.1:80";

/// Builds a node with a service, served by programs that no agent repairs.
fn build() -> World {
    let world = World::serving();
    assert!(world.start_by_stack(7).stop().success());
    ask(&world, CLIENT, CART, &[]).is_clean();
    assert!(world.connect(CART).is_ok());
    world
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

/// By default, too, new connections pass the stack if it has firewall rules.
#[test]
fn with_default_settings_explain_finds_a_forward_chain_that_drops() {
    let world = World::serving();
    let _agent = world.start(7);
    let said = ask(&world, CLIENT, CART, &[]);
    let path = |said: &Said| said.report["path"].as_str().map(str::to_owned);
    assert!(path(&said).is_some_and(|path| path.contains("nothing judges")));
    world.nft(
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
fn explain_finds_firewall_sysctl_and_route_settings_that_stop_packets() {
    let world = build();
    let chain = "add table inet firewall
add chain inet firewall forward { type filter hook forward priority 0; policy drop; }
";
    stops(
        &world,
        "chain inet firewall forward: its policy drops what is forwarded, and it has no rule",
        || world.nft(chain),
        || world.nft("delete table inet firewall\n"),
    );
    let policy = |program: &str, words: &str| {
        let set = |verdict| drop(world.tool(program, &format!("--policy FORWARD {verdict}")));
        stops(&world, words, || set("DROP"), || set("ACCEPT"));
    };
    policy("iptables-nft", "chain ip filter FORWARD");
    policy("iptables-legacy", "chain FORWARD of iptables-legacy");
    stops(
        &world,
        "net.ipv4.ip_forward: is 0",
        || world.set("ipv4/ip_forward", "0"),
        || world.set("ipv4/ip_forward", "1"),
    );
    let server = world.server_interface();
    for kind in ["blackhole", "unreachable", "prohibit"] {
        stops(
            &world,
            &format!("endpoint 10.40.1.20:8080: a route of kind {kind} ends it"),
            || {
                world.ip("route del 10.40.1.20/32");
                world.ip(&format!("route add {kind} 10.40.1.20/32"));
            },
            || {
                world.ip(&format!("route del {kind} 10.40.1.20/32"));
                world.ip(&format!("route add 10.40.1.20/32 dev {server}"));
            },
        );
    }
    stops(
        &world,
        "endpoint 10.40.1.20:8080: there is no route",
        || world.ip("route del 10.40.1.20/32"),
        || world.ip(&format!("route add 10.40.1.20/32 dev {server}")),
    );
}

#[test]
fn explain_reports_differences_that_do_not_stop_packets() {
    let world = build();
    let accepts = "add table inet firewall
add chain inet firewall forward { type filter hook forward priority 0; policy drop; }
add rule inet firewall forward accept
";
    world.nft(accepts);
    agree(&world, &[]).finds("differs", "unless one of its rules accepts it");
    world.nft("delete table inet firewall\n");

    let left = "add table ip kube-proxy
add chain ip kube-proxy services { type nat hook prerouting priority dstnat; }
add table ip nat
add chain ip nat KUBE-SERVICES
";
    world.nft(left);
    let said = agree(&world, &[]);
    said.finds("differs", "rules of kube-proxy's mode nftables");
    said.finds("differs", "KUBE-SERVICES in table ip nat: they stay");
    world.nft("delete table ip kube-proxy\ndelete table ip nat\n");

    let server = world.server_interface();
    let mtu = |bytes: &str| world.ip(&format!("link set {server} mtu {bytes}"));
    mtu("1300");
    agree(&world, &[]).finds(
        "differs",
        "the way has an MTU of 1300, the client's interface one of 1500",
    );
    mtu("1500");

    // The next packet asks again, and so does `explain`.
    world.ip(&format!(
        "neighbour replace 10.40.1.20 dev {server} nud failed"
    ));
    agree(&world, &[]).is_clean();

    // A connection that another proxy has translated for the same client, and that is still open.
    let rules = "add table ip other
add chain ip other services { type nat hook prerouting priority dstnat; }
add rule ip other services ip daddr 172.30.1.7 tcp dport 80 dnat to 10.40.1.20:8080
";
    world.nft(rules);
    let open = world.connect("172.30.1.7:80").expect("the other serves");
    let said = ask(&world, CLIENT, "172.30.1.7:80", &[]);
    said.finds(
        "differs",
        "that somebody else translates, for example 10.40.1.10:",
    );
    drop(open);
    world.nft("delete table ip other\n");

    let client = world.client_interface();
    let foreign = world.foreign(&client, false, ChainPosition::Last);
    agree(&world, &[]).finds("note", "runs behind portolan's at ingress");
    drop(foreign);
    let foreign = world.foreign(&client, false, ChainPosition::First);
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

#[test]
fn explain_names_the_hook_of_a_detached_program() {
    let world = build();
    let index = world.index(&world.client_interface());
    for hook in ["ingress", "egress"] {
        detach(&world, &format!("{index}-{hook}"));
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
    detach(&world, "cgroup-connect_v4");
    let said = ask(&world, "node", CART, &[]);
    said.finds("in-the-way", "socket hooks: not attached: connect_v4");
    assert!(world.connect_from_node(CART).is_err());
}

#[test]
fn explain_with_probe_finds_an_endpoint_that_does_not_listen() {
    let world = World::build();
    let deaf = Service::new("deaf", "172.30.1.6").target(8081);
    world.write("deaf.yaml", deaf);
    assert!(world.start_by_stack(7).stop().success());
    let to = "172.30.1.6:80";
    ask(&world, CLIENT, to, &[]).is_clean();
    let said = ask(&world, CLIENT, to, &["--probe"]);
    said.finds(
        "in-the-way",
        "endpoint 10.40.1.20:8081: a connection from this node failed: refused",
    );
    assert!(!said.is_answered() && world.connect(to).is_err());
    world.serve(("10.40.1.20", 8081));
    ask(&world, CLIENT, to, &["--probe"]).is_clean();
}

#[test]
fn explain_finds_an_asymmetric_route_with_strict_rp_filter() {
    let world = World::serving();
    let outside = outside(&world);
    assert!(world.start_by_stack(7).stop().success());
    let node_port = "10.40.0.1:30001";
    ask(&world, OUTSIDE, node_port, &[]).is_clean();
    let interface = world.interface_to(OUTSIDE);
    // The node's route to the client uses another interface than the client's packets do.
    let pod = world.client_interface();
    world.ip(&format!("route change {OUTSIDE}/32 dev {pod}"));
    world.set("ipv4/conf/all/rp_filter", "1");
    let said = ask(&world, OUTSIDE, node_port, &["--interface", &interface]);
    said.finds("in-the-way", "rp_filter: is 1 (strict)");
    assert_eq!(said.status, 3);
    assert!(Open::connect(&outside, node_port).is_err());
    world.ip(&format!("route change {OUTSIDE}/32 dev {interface}"));
    assert!(Open::connect(&outside, node_port).is_ok());
    ask(&world, OUTSIDE, node_port, &["--interface", &interface]).is_clean();
}
