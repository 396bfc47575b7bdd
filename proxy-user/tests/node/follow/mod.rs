// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan explain --follow` names the station that lost a real packet: each fault is set up, the
//! sentence is compared, and the fault is removed again.

mod node;

use std::{net::TcpStream, thread, time::Duration};

use lab::node::foreign::{CgroupHook, ChainPosition, DROP, Foreign};
use nix::sys::signal::Signal;

use self::node::{DEAF, FULL, HALF, Node, UNREADY, bridged, follow};
use crate::{
    commands::fields_are,
    connection::{listen, serve},
    explain::OUTSIDE,
    repair::detach,
    trace::Tracing,
    world::{CART, CLIENT, NODE_PORT, World},
};

#[test]
fn routes_neighbours_links_and_parameters_that_lose_a_packet_are_named() {
    let node = Node::build(false);
    node.names(include_str!("routes.txt"));
    node.follow(CART).was_answered();
}

#[test]
fn rules_programs_endpoints_and_sources_that_lose_a_packet_are_named() {
    let node = Node::build(false);
    node.names(include_str!("rules.txt"));
    programs_of_others(&node);
    endpoints_that_do_not_answer(&node);
    packets_of_an_outsider(&node.world);
    freed_packets_are_shown(&node.world);
    nothing_is_left_behind_by_a_killed_command(&node.world);
    // A missing program is named before what follows from it.
    let index = node.world.index(&node.world.interface_to(CLIENT));
    detach(&node.world, &format!("{index}-ingress"));
    let flags = format!("--interface {}", node.interfaces[0]);
    let said = follow(&node.world, CLIENT, CART, &flags);
    let summary = said.0["summary"].as_str().expect("a summary");
    let missing = "no program of portolan's is attached at ingress";
    assert!(summary.contains(missing), "{:#}", said.0);
}

fn programs_of_others<'a>(node: &'a Node) {
    const XDP_DROP: i32 = 1;
    let [client, server] = &node.interfaces;
    // A program that drops questions for the pod's address must not be what loses the packet.
    node.run("node ip neighbour change 10.40.1.20 dev $out nud permanent");
    let at_tc = |interface: &str, egress, at| {
        let foreign = Foreign::new(node.world.node(), interface, egress, at, DROP);
        let hook = if egress { "egress" } else { "ingress" };
        let words = format!("tc {hook}, interface {interface}: program ");
        (words, foreign.expect("attached"))
    };
    let at_xdp = |generic| {
        let foreign = Foreign::at_xdp(node.world.node(), client, XDP_DROP, generic);
        ("XDP".to_owned(), foreign.expect("attached"))
    };
    let attach: [&dyn Fn() -> (String, Foreign<'a>); 6] = [
        &|| at_tc(client, false, ChainPosition::First),
        &|| at_tc(client, false, ChainPosition::Last),
        &|| at_tc(server, true, ChainPosition::Last),
        &|| at_tc(server, true, ChainPosition::Filter),
        &|| at_xdp(false),
        &|| at_xdp(true),
    ];
    for attach in attach {
        let (words, foreign) = attach();
        let said = node.follow(CART);
        said.was_lost(&words);
        said.was_lost("(foreign)");
        drop(foreign);
    }
    node.follow(CART).was_answered();
}

fn endpoints_that_do_not_answer(node: &Node) {
    let world = &node.world;
    node.follow(UNREADY).was_lost("rejected_no_endpoint");
    let said = node.follow(DEAF);
    said.was_lost("the endpoint 10.40.1.20:8081: no process listens at that port");
    // The port that it should have been.
    said.was_lost("listened at are 8080");
    let said = follow(world, CLIENT, HALF, "--each");
    said.was_lost("there is no route");
    let told = |at: usize| said.0["endpoints"][at]["followed"].as_str();
    assert!(told(0).is_some_and(|text| text.starts_with("was answered")));
    assert!(told(1).is_some_and(|text| text.contains("there is no route")));
    serve(&world.server, "10.40.1.20:8081");
    node.follow(DEAF).was_answered();

    for cookies in ["1", "0"] {
        let set = world.server.set(&[
            ("ipv4/tcp_syncookies", cookies),
            ("core/somaxconn", "1"),
            ("ipv4/tcp_max_syn_backlog", "1"),
        ]);
        set.expect("the pod's parameters");
        let listener = listen(&world.server, "10.40.1.20:8082");
        // Nobody accepts; the queue takes two.
        let connect = || TcpStream::connect("10.40.1.20:8082");
        let open = [(); 2].map(|()| world.client.enter(connect).expect("the pod"));
        node.follow(FULL)
            .was_lost("the endpoint 10.40.1.20:8082: its queue of connections is full");
        drop((open.map(|open| open.expect("queued")), listener));
    }
}

fn packets_of_an_outsider(world: &World) {
    let interface = world.interface_to(OUTSIDE);
    let flags = format!("--interface {interface}");
    let asked = |from: &str| follow(world, from, NODE_PORT, &flags);
    asked("198.51.100.9").was_lost("there is no route");
    world.ip(&format!("route add 198.51.100.9/32 dev {interface}"));
    // Nobody has the address, so the answer is lost behind the node.
    asked("198.51.100.9").was_lost("the next hop does not answer");
    // The node's route to the client uses another interface than the client's packets do.
    let pod = world.interface_to(CLIENT);
    world.ip(&format!("route change 198.51.100.9/32 dev {pod}"));
    world.set("ipv4/conf/all/rp_filter", "1");
    asked("198.51.100.9").was_lost("reverse path filtering");
    world.set("ipv4/conf/all/rp_filter", "0");
    asked("127.0.0.9").was_lost("martian");
}

/// `portolan trace --drops` shows what the kernel frees of services, and nothing else.
fn freed_packets_are_shown(world: &World) {
    world.nft("table inet firewall {\n chain filter { type filter hook forward priority 0; policy accept;\n tcp dport { 8080, 9090 } drop\n }\n}\n");
    let flags = "--drops --duration 60 --service shop/cart";
    let command = world.asking("trace -o json");
    let trace = Tracing::begin(world, command, flags, "watching what the kernel frees");
    // No service has this port.
    assert!(!world.answers("10.40.1.20:9090"));
    assert!(!world.answers(CART));
    // Other tests' nodes have the same addresses in other namespaces.
    let line = trace.wait("it is freed", |line| line["namespace"].is_null());
    trace.end(Signal::SIGKILL);
    let interface = world.interface_to(CLIENT);
    let expected = format!(
        "reason=NETFILTER_DROP service=shop/cart from/address={CLIENT} to/port=8080 interface={interface}"
    );
    fields_are(&line, &expected);
}

/// The kernel removes the rules with the process; programs are attached by its descriptors only.
/// The rules of `freed_packets_are_shown` make the command have rules of its own.
fn nothing_is_left_behind_by_a_killed_command(world: &World) {
    let rules = || world.tool("nft", "list ruleset");
    let before = rules();
    let line = format!("explain --from {CLIENT} --to {CART} --follow --next");
    let mut waiting = world.begin(&mut world.asking(&line));
    while !rules().contains("portolan-follow") {
        thread::sleep(Duration::from_millis(20));
    }
    waiting.kill().expect("killed");
    waiting.wait().expect("its end");
    assert_eq!(rules(), before);
}

#[test]
fn what_loses_a_packet_of_a_pods_socket_is_named() {
    let node = Node::build(true);
    node.names(include_str!("sockets.txt"));
    for (hook, words) in [
        (CgroupHook::Connect, "the client's socket: program "),
        (CgroupHook::Egress, "the cgroup's egress hook"),
    ] {
        let foreign = Foreign::refusing(node.world.cgroup.path(), hook).expect("attached");
        let said = node.follow(CART);
        said.was_lost(words);
        said.was_lost("(foreign)");
        drop(foreign);
    }
    node.follow(CART).was_answered();
}

#[test]
fn a_rule_of_a_bridge_is_named() {
    let (world, _pods) = bridged();
    // A port asks about packets, not about the pod's socket.
    let asked = || follow(&world, "10.40.2.10:40000", CART, "");
    // The client's port is found although the bridge has forgotten it.
    world.ip("link set br0 type bridge fdb_flush");
    let said = asked();
    said.was_answered();
    assert_eq!(said.0["hook"], "a packet that comes in by port10");
    // The node routes the request; the answer passes from port to port.
    world.nft("table bridge firewall {\n chain filter { type filter hook forward priority 0; policy accept;\n tcp sport 8080 drop\n }\n}\n");
    asked().was_lost("chain bridge firewall filter: `tcp sport 8080 drop`");
    world.nft("delete table bridge firewall\n");
    asked().was_answered();
}
