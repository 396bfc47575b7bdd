// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A Gateway whose Service has `externalTrafficPolicy: Local`.

use proxy_common::EndpointSet;
use rstest::rstest;

use super::*;
use crate::plan::PortPlan;

/// The services `a` with endpoints 1, 2, 3 and `b` with 4, on these nodes, and a route to both with
/// equal weights.
fn cluster(nodes: [&str; 4]) -> Cluster {
    let [one, two, three, four] = nodes;
    let of_a = [(1, one), (2, two), (3, three)].map(|(octet, node)| endpoint(octet, node, ""));
    let local = "type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 32000";
    super::cluster(&[
        NODE.to_owned(),
        edge(""),
        MADE.replace("type: LoadBalancer", local),
        to("{name: a, port: 80}, {name: b, port: 80}"),
        service("a", "10.96.0.3", ""),
        slice("a-1", "a", &of_a),
        service("b", "10.96.0.4", ""),
        slice("b-1", "b", &[endpoint(4, four, "")]),
    ])
}

/// Returns the backends of a set, each with the last octet of its address and its weight in the
/// set.
fn weights(port: &PortPlan, set: EndpointSet) -> Vec<(u8, u32)> {
    let backends = port.v4.backends.iter();
    let members = backends.filter(|backend| backend.sets.intersects(set));
    members
        .map(|backend| (backend.address.octets[3], backend.weight_in(set)))
        .collect()
}

#[rstest]
#[case(["node-a", "node-a", "node-b", "node-a"], &[(1, 1), (2, 1), (4, 2)], 3)]
// The share of a backend without local endpoints is refused, by 192.168.40.2.
#[case(["node-a", "node-a", "node-a", "node-b"], &[(1, 1), (2, 1), (3, 1), (2, 3)], 3)]
// KUBE: as for a Service, they are dropped, and the health check sends load balancers elsewhere.
#[case(["node-b"; 4], &[], 0)]
fn each_set_has_the_shares_of_its_own_endpoints(
    #[case] nodes: [&str; 4],
    #[case] local: &[(u8, u32)],
    #[case] local_endpoints: usize,
) {
    let planned = cluster(nodes).gateway_plan("shop/gateway:edge");
    assert_eq!(planned.warnings, []);
    let port = &planned.plan.ports[0];
    let cluster_set = [(1, 1), (2, 1), (3, 1), (4, 3)];
    assert_eq!(weights(port, EndpointSet::CLUSTER), cluster_set);
    assert_eq!(weights(port, EndpointSet::LOCAL), local);
    let health = planned.plan.health_check.expect("a port");
    let expected = (32000, local_endpoints);
    assert_eq!((health.port, health.local_endpoints), expected);
    let lacks = planned.plan.lacks_local_endpoints();
    assert_eq!(lacks, [false, false, local_endpoints == 0, false]);
}

#[test]
fn only_the_gateway_has_the_health_check_node_port() {
    let mut cluster = cluster(["node-b"; 4]);
    assert_eq!(cluster.plan("shop/gateway-edge").0.health_check, None);
    let node_port = service("x", "10.96.0.9", "").replace("port: 80", "port: 80, nodePort: 32000");
    assert_eq!(cluster.apply(&node_port), ["shop/gateway:edge", "shop/x"]);
    let warning = cluster.gateway_plan("shop/gateway:edge").warnings[0].to_string();
    let begins = "Gateway shop/edge: healthCheckNodePort 32000 is Service shop/x's node port";
    assert!(warning.starts_with(begins), "{warning}");
}
