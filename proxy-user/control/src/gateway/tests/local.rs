// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A Gateway whose Service has `externalTrafficPolicy: Local`.

use proxy_common::EndpointSet;

use super::*;
use crate::plan::{HealthCheckPlan, PortPlan};

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

fn planned(cluster: &Cluster) -> (PortPlan, Option<HealthCheckPlan>) {
    let mut planned = cluster.gateway_plan("shop/gateway:edge");
    assert_eq!(planned.warnings, []);
    (planned.plan.ports.remove(0), planned.plan.health_check)
}

#[test]
fn each_set_has_the_shares_of_its_own_endpoints() {
    let (port, health) = planned(&cluster(["node-a", "node-a", "node-b", "node-a"]));
    let of = |set| weights(&port, set);
    assert_eq!(of(EndpointSet::CLUSTER), [(1, 1), (2, 1), (3, 1), (4, 3)]);
    assert_eq!(of(EndpointSet::LOCAL), [(1, 1), (2, 1), (4, 2)]);
    let (port, local_endpoints) = (32000, 3);
    assert_eq!(
        health,
        Some(HealthCheckPlan {
            port,
            local_endpoints
        })
    );
}

#[test]
fn the_share_of_a_backend_without_local_endpoints_is_refused_for_outside_clients() {
    let (port, health) = planned(&cluster(["node-a", "node-a", "node-a", "node-b"]));
    let of = |set| weights(&port, set);
    assert_eq!(of(EndpointSet::CLUSTER), [(1, 1), (2, 1), (3, 1), (4, 3)]);
    // 192.168.40.2 refuses.
    assert_eq!(of(EndpointSet::LOCAL), [(1, 1), (2, 1), (3, 1), (2, 3)]);
    assert_eq!(health.map(|health| health.local_endpoints), Some(3));
}

/// KUBE: as for a Service, they are dropped, and the health check sends load balancers elsewhere.
#[test]
fn without_any_local_endpoint_outside_clients_have_no_backend() {
    let mut cluster = cluster(["node-b", "node-b", "node-b", "node-b"]);
    let (port, health) = planned(&cluster);
    assert_eq!(weights(&port, EndpointSet::LOCAL), []);
    assert_eq!(weights(&port, EndpointSet::CLUSTER).len(), 4);
    assert_eq!(health.map(|health| health.local_endpoints), Some(0));
    let plan = cluster.gateway_plan("shop/gateway:edge").plan;
    assert_eq!(plan.lacks_local_endpoints(), [false, false, true, false]);
    // Only the Gateway has the health check node port: nothing claims it twice.
    assert_eq!(cluster.plan("shop/gateway-edge").0.health_check, None);
    let node_port = service("x", "10.96.0.9", "").replace("port: 80", "port: 80, nodePort: 32000");
    assert_eq!(cluster.apply(&node_port), ["shop/gateway:edge", "shop/x"]);
    let warning = cluster.gateway_plan("shop/gateway:edge").warnings[0].to_string();
    let begins = "Gateway shop/edge: healthCheckNodePort 32000 is Service shop/x's node port";
    assert!(warning.starts_with(begins), "{warning}");
}
