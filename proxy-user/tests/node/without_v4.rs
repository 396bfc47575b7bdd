// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node without IPv4: its health checks answer, and services are served. A node without its Node
//! object is not eligible.

use std::net::{IpAddr, Ipv6Addr};

use lab::node::{
    http,
    options::{HEALTH, METRICS},
};

use crate::{
    agent::{Agent, eventually},
    world::{OF_V6, World},
};

const CLUSTER_IP: &str = "[fd00:30::1]:80";
const NODE_PORT: &str = "[fd00:c0::1]:30001";

/// The Node object.
pub(crate) fn node() -> String {
    let [own, ..] = OF_V6;
    format!(
        "{{apiVersion: v1, kind: Node, metadata: {{name: node-a, resourceVersion: \"7\"}}, status: {{addresses: [{{type: InternalIP, address: \"{own}\"}}]}}}}"
    )
}

/// A service whose health check port load balancers ask.
fn service() -> String {
    let [.., server] = OF_V6;
    format!(
        "apiVersion: v1
kind: Service
metadata: {{name: cart, namespace: shop}}
spec: {{type: LoadBalancer, clusterIP: \"fd00:30::1\", clusterIPs: [\"fd00:30::1\"], ipFamilies: [IPv6], externalTrafficPolicy: Local, healthCheckNodePort: 32001, ports: [{{port: 80, nodePort: 30001}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: cart-1, namespace: shop, labels: {{kubernetes.io/service-name: cart}}}}
addressType: IPv6
ports: [{{name: \"\", protocol: TCP, port: 8080}}]
endpoints: [{{addresses: [\"{server}\"], nodeName: node-a}}]
"
    )
}

/// Asks as the kubelet does, at the node's address: a pod in the node's network has that address.
fn ask(agent: &Agent<'_>, port: u16, path: &str) -> Option<u16> {
    let own: Ipv6Addr = OF_V6[0].parse().expect("an address");
    let answer = agent.get((own, port).into(), path);
    answer.ok().map(|(status, _)| status)
}

#[test]
fn a_node_without_ipv4_is_healthy_and_serves_at_sockets_and_by_packets() {
    let world = World::build_without_v4();
    let has_v4 = world.node().feed("ip", &["-4", "-o", "address"], "");
    let has_v4 = has_v4.expect("its addresses");
    assert!(has_v4.lines().all(|line| line.contains(" lo ")), "{has_v4}");
    world.write("node.yaml", &node());
    world.write("cart.yaml", &service());
    // The default address, which other tests replace.
    let defaults = ["--healthz-bind-address", "0.0.0.0"];
    let agent = world.start_with(7, &defaults);
    assert_eq!(ask(&agent, HEALTH.port(), "/healthz"), Some(200));
    assert_eq!(ask(&agent, HEALTH.port(), "/livez"), Some(200));
    eventually("the health check node port answers", &agent, || {
        ask(&agent, 32001, "/") == Some(200)
    });
    assert!(world.connect(CLUSTER_IP).is_ok(), "by packets");
    assert!(world.connect(NODE_PORT).is_ok(), "by packets");
    assert!(world.connect_from_node(CLUSTER_IP).is_ok(), "at the socket");
    assert!(world.connect_from_node(NODE_PORT).is_ok(), "at the socket");
    assert!(!agent.log().contains("WARN"), "{}", agent.log());
    assert!(agent.stop().success());

    let everywhere = [&defaults[..], &["--metrics-bind-address", "0.0.0.0"]].concat();
    let agent = world.start_with(7, &everywhere);
    assert_eq!(ask(&agent, METRICS.port(), "/metrics"), Some(200));
    assert!(agent.stop().success());
    let agent = world.start_with(7, &[&defaults[..], &["--bind-address", "::"]].concat());
    let loopback = IpAddr::from(Ipv6Addr::LOCALHOST);
    let metrics = (loopback, METRICS.port()).into();
    let (status, _) = http::get(world.node(), loopback, metrics, "/metrics").expect("an answer");
    assert_eq!(status, 200);
    assert!(agent.stop().success());
}

#[test]
fn a_node_is_not_eligible_before_its_object_is_there_but_alive_and_serving() {
    let world = World::build_without_v4();
    world.write("cart.yaml", &service());
    let manifests = world.manifests();
    let agent = world.spawn(&["--manifests", manifests.to_str().expect("a plain path")]);
    eventually("it serves", &agent, || world.connect(CLUSTER_IP).is_ok());
    agent.says(&["ready"]);
    let (status, body) = agent.health();
    assert_eq!(status, 503, "{body}");
    assert!(body.contains(r#""nodeEligible":false"#), "{body}");
    assert!(body.contains("there is no Node object"), "{body}");
    assert!(agent.is_alive());
    // This is the health check port of one service, which the load balancer asks.
    let (status, body) = agent
        .get((Ipv6Addr::LOCALHOST, 32001).into(), "/")
        .expect("an answer");
    assert!(
        body.contains(r#""serviceProxyHealthy":true"#),
        "{status} {body}"
    );
    world.write("node.yaml", &node());
    agent.wait_for(7);
}
