// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node without IPv4: health checks and services work; without a Node object it is not eligible.

use std::net::Ipv6Addr;

use lab::node::options::HEALTH;

use crate::{
    agent::Agent,
    objects::{Service, node_object},
    world::{OF_V6, World},
};

const CLUSTER_IP: &str = "[fd00:30::1]:80";
const NODE_PORT: &str = "[fd00:c0::1]:30001";

/// Asks as the kubelet does, at the node's address: a pod in the node's network has that address.
fn ask(agent: &Agent, port: u16, path: &str) -> Option<u16> {
    let own: Ipv6Addr = OF_V6[0].parse().expect("an address");
    let answer = agent.get((own, port).into(), path);
    answer.ok().map(|(status, _)| status)
}

#[test]
fn a_node_without_ipv4_is_healthy_and_serves_pods_and_node_processes() {
    let world = World::with_pods(OF_V6);
    let has_v4 = world.tool("ip", "-4 -o address");
    assert!(has_v4.lines().all(|line| line.contains(" lo ")), "{has_v4}");
    // Load balancers ask its health check port.
    world.publish(Service::new("cart", "fd00:30::1").checked_at(32001));
    // The default address, which other tests replace.
    let agent = world.spawn(&["--healthz-bind-address", "0.0.0.0"]);
    without_a_node_object_healthz_fails_but_livez_and_services_work(&world, &agent);
    let said = agent.log().len();
    world.write("node.yaml", node_object(&[OF_V6[0]], 7));
    agent.wait_for(7);
    assert_eq!(ask(&agent, HEALTH.port(), "/healthz"), Some(200));
    assert_eq!(ask(&agent, HEALTH.port(), "/livez"), Some(200));
    let answers = || ask(&agent, 32001, "/") == Some(200);
    agent.eventually("the health check node port answers", answers);
    assert!(world.answers(CLUSTER_IP), "by packets");
    assert!(world.answers(NODE_PORT), "by packets");
    assert!(world.connect_from_node(CLUSTER_IP).is_ok(), "at the socket");
    assert!(world.connect_from_node(NODE_PORT).is_ok(), "at the socket");
    assert!(!agent.log()[said..].contains("WARN"), "{}", agent.log());
    assert!(agent.stop().success());
}

fn without_a_node_object_healthz_fails_but_livez_and_services_work(world: &World, agent: &Agent) {
    agent.eventually("it serves", || world.answers(CLUSTER_IP));
    agent.says(&["ready"]);
    let (status, body) = agent.health();
    assert_eq!(status, 503, "{body}");
    assert!(body.contains(r#""nodeEligible":false"#), "{body}");
    assert!(body.contains("there is no Node object"), "{body}");
    assert!(agent.is_alive());
    // This is the health check port of one service, which the load balancer asks.
    let asked = agent.get((Ipv6Addr::LOCALHOST, 32001).into(), "/");
    let (status, body) = asked.expect("an answer");
    let is_healthy = body.contains(r#""serviceProxyHealthy":true"#);
    assert!(is_healthy, "{status} {body}");
}
