// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A process of the node answers at a service's cluster IP, as NodeLocal DNSCache does: packets and
//! sockets to the address go to that process while the node has it.

use std::net::{Ipv4Addr, SocketAddr};

use lab::traffic::{clients::Client, probe::Outcome, servers::Servers};
use proxy_common::Protocol;

use crate::{
    agent::{Agent, eventually},
    attachments::CART,
    objects::{SERVICE_CIDR, questions, service},
    world::{World, at},
};

const CLUSTER_IP: &str = "172.30.1.9";
const QUESTION: &str = "172.30.1.9:53";
const POD: &str = "10.40.1.20:8080";
/// A configuration that drops packets to cluster IPs without a service.
const DROPS: &str = "portolan: {unallocatedClusterIPs: drop}\n";

/// Waits until this server answers a pod, packet by packet, and a process of the node, at its
/// socket.
fn answered_by(server: &str, world: &World, agent: &Agent) {
    let of = |host| -> Option<SocketAddr> {
        let client = Client::new(host, Ipv4Addr::UNSPECIFIED.into());
        let asked = client.call(Protocol::UDP, at(QUESTION), 0);
        match asked.expect("asked").outcome {
            Outcome::Answered(answer) => Some(answer.by),
            _ => None,
        }
    };
    eventually(&format!("{server} answers"), agent, || {
        let of_node = world.cgroup().inside(|| of(world.node()));
        [of(world.client()), of_node.expect("the cgroup")] == [Some(at(server)); 2]
    });
}

#[test]
fn a_cluster_ip_on_a_node_interface_is_answered_by_the_node_process() {
    let world = World::build();
    let servers = Servers::start().expect("servers");
    let listen = |host, to| {
        servers
            .listen(host, Protocol::UDP, at(to))
            .expect("a server")
    };
    let _pod = listen(world.server(), POD);
    world.write("questions.yaml", questions());
    world.write("cart.yaml", service("cart", "172.30.1.1"));
    world.write("range.yaml", SERVICE_CIDR);
    let agent = world.start_configured(7, DROPS);
    answered_by(POD, &world, &agent);

    world.ip(&format!(
        "link add nodelocaldns type bridge\nlink set nodelocaldns up\naddress add {CLUSTER_IP}/32 dev nodelocaldns"
    ));
    let cache = listen(world.node(), QUESTION);
    answered_by(QUESTION, &world, &agent);
    agent.says(&[
        "Service shop/questions",
        CLUSTER_IP,
        "an address of this node",
    ]);
    assert!(world.connect(CART).is_ok(), "others are served");
    assert_eq!(agent.health().0, 200);
    assert!(!agent.log().contains("WARN"), "{}", agent.log());

    // The DNS cache ends.
    drop(cache);
    world.ip("link del nodelocaldns");
    answered_by(POD, &world, &agent);
    agent.says(&["Service shop/questions", "served here again"]);
    let named = agent.log().matches("is an address of this node").count();
    assert_eq!(named, 1, "{}", agent.log());
    assert!(agent.stop().success());
}
