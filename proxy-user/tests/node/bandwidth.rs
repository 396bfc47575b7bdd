// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The CNI plugin `bandwidth` together with the agent: every packet passes its limits. It limits
//! the packets to a pod by a qdisc at the node's end of the pod's interface, and those from the pod
//! by a filter there that sends them through an ifb device.
//!
//! On the same node with two uplinks, replies to clients outside leave by the interface that its
//! routes and rules select, past the stack. Hashes over next hops are in tests/packet.

use std::{thread, time::Duration};

use control::testing::rows;
use lab::node::{netns::NetNs, pod::wire};
use serde_json::json;

use crate::{
    agent::Agent,
    attachments::{LEFT, LINES, is_past_the_stack, redirecting},
    connection::Open,
    past_the_stack::RENEWALS,
    world::{CLIENT, NODE_PORT, World, packets},
};

/// Path of the plugin in Debian's package containernetworking-plugins.
const PLUGIN: &str = "/usr/lib/cni/bandwidth";
/// Bits a second in each direction, and how many may pass at once, faster than the rate.
const RATE: u32 = 20_000_000;
const BURST: u32 = 640_000;

/// Limits the client's traffic, as a container runtime calls the plugin. `interface` is the node's
/// end of the pod's interface.
fn limit(world: &World, interface: &str) {
    let pod = world.client.path();
    let config = json!({
        "cniVersion": "0.4.0", "name": "limits", "type": "bandwidth",
        "ingressRate": RATE, "ingressBurst": BURST, "egressRate": RATE, "egressBurst": BURST,
        "prevResult": {
            "cniVersion": "0.4.0",
            "interfaces": [{"name": interface}, {"name": "eth0", "sandbox": pod}],
            "ips": [],
        },
    });
    let words = format!(
        "CNI_COMMAND=ADD CNI_CONTAINERID=client CNI_NETNS={pod} CNI_IFNAME=eth0 CNI_PATH=/usr/lib/cni {PLUGIN}"
    );
    let words: Vec<_> = words.split(' ').collect();
    let limited = world.node().feed("env", &words, &config.to_string());
    limited.expect("limited: `cargo xtask setup` installs the plugin");
}

#[test]
fn replies_leave_by_their_uplink_and_every_packet_passes_the_bandwidth_plugins_limits() {
    let world = World::serving();
    let agent = redirecting(&world);
    replies_leave_by_the_uplink_of_their_route_past_the_stack(&world, &agent);
    // Distributions set this: a packet from the ifb device must still have its sender's address.
    world.set("ipv4/conf/all/rp_filter", "1");
    let interface = world.interface_to(CLIENT);
    limit(&world, &interface);
    let devices = world.tool("ip", "-o link show type ifb");
    let ifb = devices.split(": ").nth(1).expect("the ifb device");
    let queued = |device: &str| -> u64 {
        let shown = world.tool("tc", &format!("-s qdisc show dev {device}"));
        let (_, limit) = shown.split_once("qdisc tbf").expect("the limit");
        let mut words = limit.split_whitespace().skip_while(|word| *word != "Sent");
        let packets = words.nth(3).expect("a number of packets");
        packets.parse().expect("a number")
    };
    let check = |agent: &Agent| {
        agent.eventually("it is seen", || agent.metric(LEFT) == Some(1));
        let both = || [&interface, ifb].map(queued);
        let before = both();
        assert!(!is_past_the_stack(&world));
        let grown = [0, 1].map(|device: usize| both()[device] - before[device]);
        assert!(grown.iter().all(|count| *count >= LINES), "{grown:?}");
    };
    check(&agent);
    // The next agent starts after the limit.
    assert!(agent.stop().success());
    check(&redirecting(&world));
}

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
fn answers_by(node: &NetNs, open: &mut Open) -> &'static str {
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
    UPLINKS[by]
}

/// The agent redirects packets. The table has routes, the uplink by which replies leave, and
/// whether they must leave past the stack. Rules see the pod's address as their source: egress
/// changes it later.
fn replies_leave_by_the_uplink_of_their_route_past_the_stack(world: &World, agent: &Agent) {
    let host = attach_host(world);
    for [routes, uplink, past] in rows(include_str!("uplinks.txt")) {
        let routes = routes.replace("CLIENTS", CLIENTS).replace("; ", "\n");
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
            past.is_empty() || world.forwarded() - before <= RENEWALS
        });
        for _ in 0..6 {
            let mut open = connect();
            let by = [(); 2].map(|()| answers_by(world.node(), &mut open));
            assert_eq!(by, [uplink.as_str(); 2], "{routes}");
        }
        world.ip(&routes.replace(" add ", " del "));
    }
}
