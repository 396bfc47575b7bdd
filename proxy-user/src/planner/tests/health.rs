// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Health check node ports: which services have one, and what it answers.

use rstest::rstest;

use super::{DRAINING, LOCAL_BALANCER, READY, UNREADY};
use crate::testing::{Cluster, endpoint, service, slice};

#[rstest]
#[case::ready_here(&[(1, "node-a", READY), (2, "node-a", READY), (3, "node-b", READY)], 2)]
#[case::draining_here(&[(1, "node-a", DRAINING)], 0)]
#[case::unready_here(&[(1, "node-a", UNREADY)], 0)]
#[case::none_here(&[(1, "node-b", READY)], 0)]
fn health_counts_ready_endpoints_of_this_node(
    #[case] endpoints: &[(u8, &str, &str)],
    #[case] expected: usize,
) {
    let endpoints: Vec<_> = endpoints
        .iter()
        .map(|(octet, node, rest)| endpoint(*octet, node, rest))
        .collect();
    let slices = slice("a", "cart", &endpoints) + &slice("b", "cart", &endpoints);
    let cluster = Cluster::new(&(service("cart", "172.30.0.1", LOCAL_BALANCER) + &slices));
    let health = cluster
        .plan("shop/cart")
        .0
        .health_check
        .expect("a health check");
    assert_eq!((health.port, health.local_endpoints), (31_000, expected));
}

#[rstest]
#[case(", type: LoadBalancer, externalTrafficPolicy: Cluster, healthCheckNodePort: 31000")]
#[case(", type: NodePort, externalTrafficPolicy: Local, healthCheckNodePort: 31000")]
#[case(", type: LoadBalancer, externalTrafficPolicy: Local")]
fn only_local_balancers_with_a_port_are_asked_for_health(#[case] rest: &str) {
    let cluster = Cluster::new(&service("cart", "172.30.0.1", rest));
    assert_eq!(cluster.plan("shop/cart").0.health_check, None);
}
