// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connections that another proxy has translated become ours, so that its rules may go: real nft rules, real nf_conntrack.

use std::{
    net::{Ipv6Addr, SocketAddr, UdpSocket},
    thread::{self, sleep},
    time::{Duration, Instant},
};

use lab::node::{netns::NetNs, pod::plug};
use portolan::datapath::{
    read::{Flow, Reader},
    sys::{Editor, Tracked, Tuple, tracked},
};
use proxy_common::Protocol;

use crate::{
    agent::{Agent, eventually},
    objects::service,
    stream::{Stream, serve},
    world::World,
};

/// Where streams are served, and where nobody is.
const STREAMS: &str = "10.40.1.20:8090";
const OUTSIDE: &str = "10.9.0.2";
const ENDED: &str = "the last connection that another proxy had translated";

/// The service `cart` of streams, with node port 30001.
fn streams() -> String {
    service("cart", "172.30.1.1").replace("8080", "8090")
}

/// What kube-proxy does, as far as open connections meet it: translation to `to`, masquerade of whoever is no pod, at a random
/// port, and of packets with its mark.
fn rules(to: &str) -> String {
    format!(
        "add table ip other
flush table ip other
add chain ip other services {{ type nat hook prerouting priority dstnat; }}
add rule ip other services ip daddr 172.30.1.1 tcp dport 80 dnat to {to}
add rule ip other services ip daddr 10.40.0.1 tcp dport 30001 dnat to {to}
add rule ip other services ip daddr 172.30.1.77 tcp dport 80 dnat to 10.40.1.20:8090
add chain ip other leaving {{ type nat hook postrouting priority srcnat; }}
add rule ip other leaving ct status dnat ip saddr != 10.40.0.0/16 masquerade fully-random
add rule ip other leaving meta mark & 0x4000 == 0x4000 masquerade fully-random
add chain ip other forward {{ type filter hook forward priority filter; }}
add rule ip other forward ct state invalid counter drop
"
    )
}

fn feed(node: &NetNs, rules: &str) {
    node.feed("nft", &["-f", "-"], rules).expect("rules");
}

/// What nf_conntrack translates on the node.
fn translated(node: &NetNs) -> Vec<Tracked> {
    let mut found = Vec::new();
    let visited = node.enter(|| {
        tracked(|tracked| {
            if tracked.is_sent_elsewhere() {
                found.push(tracked);
            }
        })
    });
    visited.expect("the node").expect("nf_conntrack");
    found
}

/// Nothing is left of the other proxy: neither rules nor what nf_conntrack knows.
fn forget_the_other(node: &NetNs, family: &str) {
    feed(node, &format!("delete table {family} other\n"));
    let forgotten = node.enter(|| {
        let editor = Editor::open()?;
        let mut all = Vec::new();
        tracked(|tracked| all.push(tracked))?;
        all.iter().try_for_each(|one| editor.remove(one).map(drop))
    });
    forgotten.expect("the node").expect("nf_conntrack");
}

/// Somebody outside, behind an interface that many clients come in by.
fn outside(world: &World) -> NetNs {
    let outside = NetNs::new("outside").expect("run as root");
    let tunnel = |local: &str, remote: &str, dev: &str| {
        format!(
            "link add vx0 type vxlan id 7 dstport 4789 local {local} remote {remote} dev {dev}\nlink set vx0 up\n"
        )
    };
    let batch = format!(
        "link add far0 type veth peer name eth0 netns {}\naddress add 10.8.0.1/24 dev far0\nlink set far0 up\n{}address add 10.9.0.1/24 dev vx0\n",
        outside.path(),
        tunnel("10.8.0.1", "10.8.0.2", "far0")
    );
    world.node().ip(&batch).expect("the node's interfaces");
    let batch = format!(
        "link set lo up\naddress add 10.8.0.2/24 dev eth0\nlink set eth0 up\n{}address add {OUTSIDE}/24 dev vx0\nroute add 10.40.0.1/32 via 10.9.0.1\n",
        tunnel("10.8.0.2", "10.8.0.1", "eth0")
    );
    outside.ip(&batch).expect("interfaces outside");
    outside
}

fn flows(world: &World) -> Vec<Flow> {
    let flows = Reader::open(world.pins()).and_then(|reader| reader.flows());
    flows.expect("flows")
}

fn imported(agent: &Agent<'_>) -> u64 {
    let page = agent.metrics("/metrics");
    let mut lines = page.lines();
    let line = lines.find_map(|line| line.strip_prefix("portolan_imported_connections_total "));
    line.expect("the metric").parse().expect("a number")
}

#[test]
fn connections_go_on_without_the_rules_that_made_them() {
    let world = World::build();
    serve(world.server(), STREAMS);
    let outside = outside(&world);
    feed(world.node(), &rules(STREAMS));
    let clients = [
        (world.client(), "172.30.1.1:80"),
        (world.client(), "172.30.1.1:80"),
        (&outside, "10.40.0.1:30001"),
        (&outside, "10.40.0.1:30001"),
    ];
    let open = clients.map(|(pod, to)| Stream::connect(pod, to).expect("the other serves"));
    let not_ours = Stream::connect(world.client(), "172.30.1.77:80").expect("the other serves");
    open.iter().for_each(Stream::speaks);
    // From now on whatever is taken for new is sent where it is reset.
    feed(world.node(), &rules("10.40.1.20:8099"));
    assert_eq!(translated(world.node()).len(), open.len() + 1);

    world.write("cart.yaml", &streams());
    let agent = world.start(7);
    agent.says(&["imported connections", "connections=4", "left=\"0\""]);
    agent.says(&[ENDED]);
    assert_eq!(imported(&agent), 4);
    open.iter().for_each(Stream::speaks);
    not_ours.speaks();
    let left = translated(world.node());
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!(left[0].original.src.port(), not_ours.port());
    let invalid = world
        .node()
        .feed("nft", &["list", "chain", "ip", "other", "forward"], "");
    let invalid = invalid.expect("the chain");
    assert!(invalid.contains("packets 0 "), "{invalid}");
    not_ours.finish();

    forget_the_other(world.node(), "ip");
    open.iter().for_each(Stream::speaks);
    for stream in &open {
        assert!(stream.repeated() < 5, "{} repeated", stream.repeated());
    }
    let established = |flow: &Flow| flow.state == "established";
    let all = flows(&world);
    assert_eq!(
        all.iter().filter(|flow| established(flow)).count(),
        4,
        "{all:?}"
    );
    open.map(Stream::finish);
    eventually("they have ended", &agent, || {
        flows(&world).iter().all(|flow| flow.state == "closed")
    });
    // What comes now is ours.
    let new = Stream::connect(&outside, "10.40.0.1:30001").expect("we serve");
    new.speaks();
    new.finish();
}
