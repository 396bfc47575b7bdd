// SPDX-License-Identifier: Apache-2.0 OR MIT
//! On a node with two uplinks, replies to clients outside leave by the interface that its routes
//! and rules select, past the stack. Hashes over next hops are in tests/packet. Part of the test of
//! `bandwidth`.

use std::{thread, time::Duration};

use lab::node::{netns::NetNs, pod::wire};

use crate::{
    agent::Agent,
    connection::Open,
    past_the_stack::RENEWALS,
    world::{NODE_PORT, World, packets},
};

const CLIENTS: &str = "203.0.113.0/24";

/// The uplinks' names at the node.
const UPLINKS: [&str; 2] = ["uplink0", "uplink1"];

/// Connects a host to the node by two links; its own packets take the first link.
fn attach_host(world: &World) -> NetNs {
    let host = world.host("uplink0 192.168.0.1/24", "eth0 192.168.0.2/24");
    let ends = ["uplink1 192.168.1.1/24", "eth1 192.168.1.2/24"];
    wire(world.node(), ends[0], &host, ends[1]).expect("the other link");
    let own = "address add 203.0.113.9/32 dev lo\nroute replace default via 192.168.0.1 src 203.0.113.9\n";
    host.ip(own).expect("its address");
    for (host, interfaces) in [(&host, ["eth0", "eth1"]), (world.node(), UPLINKS)] {
        for name in ["all", "default"].into_iter().chain(interfaces) {
            let loose = format!("ipv4/conf/{name}/rp_filter");
            host.set(&[(&*loose, "0")]).expect("answers by either wire");
        }
    }
    host
}

const QUESTIONS: u64 = 40;
/// The most other packets that an uplink may send meanwhile: ARP, and late acknowledgements.
const FEW: u64 = 6;

/// Returns the uplink by which the answers to questions on an open connection leave.
fn answers_by(node: &NetNs, open: &mut Open) -> usize {
    // The number of packets that the node has sent by each uplink.
    let sent = || UPLINKS.map(|uplink| packets(node, uplink)[1]);
    let before = sent();
    for _ in 0..QUESTIONS {
        assert_eq!(open.echo("question"), "question");
    }
    let after = sent();
    let counts = [after[0] - before[0], after[1] - before[1]];
    let by = usize::from(counts[1] > counts[0]);
    assert!(
        counts[by] >= QUESTIONS && counts[1 - by] <= FEW,
        "answers by both uplinks: {counts:?}"
    );
    by
}

/// Routes, the uplink by which replies leave, and whether they must leave past the stack. Rules see
/// the pod's address as their source: egress changes it later.
const ROUTES: [(&str, usize, bool); 3] = [
    ("route add CLIENTS via 192.168.1.2", 1, true),
    (
        "route add CLIENTS via 192.168.0.2
route add CLIENTS via 192.168.1.2 table 77
rule add from 10.40.0.1 lookup 77",
        0,
        true,
    ),
    (
        "route add CLIENTS via 192.168.0.2
route add CLIENTS via 192.168.1.2 table 77
rule add from 10.40.1.0/24 lookup 77",
        1,
        false,
    ),
];

/// The agent redirects packets.
pub(crate) fn replies_leave_by_the_uplink_of_their_route_past_the_stack(
    world: &World,
    agent: &Agent,
) {
    let host = attach_host(world);
    for (routes, uplink, is_past) in ROUTES {
        let routes = routes.replace("CLIENTS", CLIENTS);
        world.ip(&routes);
        let connect = || {
            let open = Open::connect(&host, NODE_PORT);
            open.unwrap_or_else(|error| panic!("{routes}: {error}: {}", agent.log()))
        };
        // The agent looks once a second which interfaces may redirect.
        thread::sleep(Duration::from_secs(3));
        agent.eventually("packets leave past the stack", || {
            let mut open = connect();
            let before = world.forwarded();
            answers_by(world.node(), &mut open);
            !is_past || world.forwarded() - before <= RENEWALS
        });
        for _ in 0..6 {
            let mut open = connect();
            let by = [(); 2].map(|()| answers_by(world.node(), &mut open));
            assert_eq!(by, [uplink; 2], "{routes}");
        }
        world.ip(&routes.replace(" add ", " del "));
    }
}
