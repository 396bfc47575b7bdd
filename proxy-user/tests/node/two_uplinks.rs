// SPDX-License-Identifier: Apache-2.0 OR MIT
//! On a node with two uplinks, replies to clients outside leave by the interface that its routes,
//! its rules or its hash over next hops select, whether they pass or bypass the stack.

use std::{thread, time::Duration};

use lab::node::{netns::NetNs, pod::wire};

use crate::{
    agent::{Agent, eventually},
    attachments::redirecting,
    connection::Open,
    past_the_stack::RENEWALS,
    world::{World, packets},
};

const CLIENTS: &str = "203.0.113.0/24";
const NODE_PORT: &str = "10.40.0.1:30001";

/// The uplinks' names at the node.
const UPLINKS: [&str; 2] = ["uplink0", "uplink1"];

/// Connects a host to the node by two links; its own packets take the first link.
fn attach_host(world: &World) -> NetNs {
    let host = world.host("uplink0 192.168.0.1/24", "eth0 192.168.0.2/24");
    let ends = ["uplink1 192.168.1.1/24", "eth1 192.168.1.2/24"];
    wire(world.node(), ends[0], &host, ends[1]).expect("the other link");
    let own = "address add 203.0.113.9/32 dev lo\nroute replace default via 192.168.0.1 src 203.0.113.9\n";
    host.ip(own).expect("its address");
    for (host, hashed, interfaces) in [
        (&host, None, ["all", "default", "eth0", "eth1"]),
        (
            world.node(),
            Some(("ipv4/fib_multipath_hash_policy", "1")),
            ["all", "default", UPLINKS[0], UPLINKS[1]],
        ),
    ] {
        let loose = interfaces.map(|name| format!("ipv4/conf/{name}/rp_filter"));
        let loose = loose.iter().map(|name| (name.as_str(), "0"));
        let set = host.set(&loose.chain(hashed).collect::<Vec<_>>());
        set.expect("answers by either wire, a hash over ports");
    }
    host
}

/// The number of packets that the node has sent by each uplink.
fn sent(node: &NetNs) -> [u64; 2] {
    UPLINKS.map(|uplink| packets(node, uplink)[1])
}

const QUESTIONS: u64 = 40;
/// The most other packets that an uplink may send meanwhile: ARP, and late acknowledgements.
const FEW: u64 = 6;

/// Returns the uplink by which the answers to questions on an open connection leave.
fn answers_by(node: &NetNs, open: &mut Open) -> usize {
    let before = sent(node);
    for _ in 0..QUESTIONS {
        assert_eq!(open.echo("question"), "question");
    }
    let after = sent(node);
    let counts = [after[0] - before[0], after[1] - before[1]];
    let by = usize::from(counts[1] > counts[0]);
    assert!(
        counts[by] >= QUESTIONS && counts[1 - by] <= FEW,
        "answers by both uplinks: {counts:?}"
    );
    by
}

/// How replies find an uplink: a name, commands of iproute2, whether all connections' replies leave
/// by one uplink, and whether packets must leave past the stack, because the program finds the route
/// of the stack.
const CASES: [(&str, &str, bool, bool); 4] = [
    ("one route", "route add CLIENTS via 192.168.1.2", true, true),
    (
        "a rule for the node's address",
        "route add CLIENTS via 192.168.0.2
route add CLIENTS via 192.168.1.2 table 77
rule add from 10.40.0.1 lookup 77",
        true,
        true,
    ),
    (
        "a rule for pods' addresses",
        "route add CLIENTS via 192.168.0.2
route add CLIENTS via 192.168.1.2 table 77
rule add from 10.40.1.0/24 lookup 77",
        true,
        false,
    ),
    (
        "a hash over two next hops",
        "route add CLIENTS nexthop via 192.168.0.2 nexthop via 192.168.1.2",
        false,
        false,
    ),
];

/// Connects a few times; returns the uplink by which each connection's answers leave.
fn uplinks_of(world: &World, host: &NetNs, agent: &Agent, name: &str) -> Vec<usize> {
    (0..6)
        .map(|_| {
            let open = Open::connect(host, NODE_PORT);
            let mut open = open.unwrap_or_else(|error| panic!("{name}: {error}: {}", agent.log()));
            let first = answers_by(world.node(), &mut open);
            let later = answers_by(world.node(), &mut open);
            assert_eq!(first, later, "a connection has changed its uplink");
            later
        })
        .collect()
}

/// Runs `work` while the node has these routes.
fn with_routes<T>(world: &World, routes: &str, work: impl FnOnce() -> T) -> T {
    let routes = routes.replace("CLIENTS", CLIENTS);
    world.ip(&routes);
    // The agent looks once a second which interfaces may redirect.
    thread::sleep(Duration::from_secs(3));
    let done = work();
    world.ip(&routes.replace(" add ", " del "));
    done
}

#[test]
fn replies_leave_by_the_same_uplink_past_the_stack_and_through_it() {
    let world = World::serving();
    let host = attach_host(&world);
    let agent = world.start_by_stack(7);
    let by_stack = CASES.map(|(name, routes, ..)| {
        with_routes(&world, routes, || uplinks_of(&world, &host, &agent, name))
    });
    drop(agent);
    let agent = redirecting(&world);
    for ((name, routes, is_fixed, is_past), by_stack) in CASES.into_iter().zip(by_stack) {
        let past = with_routes(&world, routes, || {
            let leaves_past = || {
                let mut open = Open::connect(&host, NODE_PORT).expect("it connects");
                let before = world.forwarded();
                answers_by(world.node(), &mut open);
                world.forwarded() - before <= RENEWALS
            };
            if is_past {
                eventually("packets leave past the stack", &agent, leaves_past);
            }
            uplinks_of(&world, &host, &agent, name)
        });
        println!("{name}: {by_stack:?}, past the stack {past:?}");
        if is_fixed {
            assert_eq!(by_stack, past, "{name}");
        }
    }
}
