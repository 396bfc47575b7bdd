// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests which services have a health check node port, and what it answers.

use rstest::rstest;

use super::{LOCAL_BALANCER, READY};
use crate::testing::{Cluster, endpoint, service, slice};

#[test]
fn a_health_check_counts_each_ready_endpoint_of_this_node_once() {
    let endpoints = [1, 2].map(|octet| endpoint(octet, "node-a", READY));
    let slices = slice("a", "cart", &endpoints) + &slice("b", "cart", &endpoints);
    let cluster = Cluster::new(&(service("cart", "172.30.0.1", LOCAL_BALANCER) + &slices));
    let health = cluster.plan("shop/cart").0.health_check;
    let health = health.map(|health| (health.port, health.local_endpoints));
    assert_eq!(health, Some((31_000, 2)));
}

#[test]
fn a_node_port_equal_to_a_health_check_node_port_gives_a_warning() {
    let with_node_port = |name: &str, ip: &str, rest: &str, port: &str| {
        service(name, ip, rest).replace("port: 80", &format!("port: 80, nodePort: {port}"))
    };
    let told = |cluster: &Cluster| {
        let (plan, warnings) = cluster.plan("shop/cart");
        assert_eq!(plan.health_check.expect("it stays").port, 31_000);
        Vec::from_iter(warnings.iter().map(ToString::to_string))
    };
    let text = |whose| {
        [format!(
            "Service shop/cart: healthCheckNodePort 31000 is {whose} node port, too, and that gets the packets: load balancers are answered by its endpoints; give one of the two another number"
        )]
    };
    let own = with_node_port("cart", "172.30.0.1", LOCAL_BALANCER, "31000");
    let mut cluster = Cluster::new(&own);
    assert_eq!(told(&cluster), text("its own"));
    cluster.apply(&service("cart", "172.30.0.1", LOCAL_BALANCER));
    assert_eq!(told(&cluster), [""; 0]);
    // A node port of another service is added, changed and removed.
    for ip in ["172.30.0.2", "'fd00:30::2'"] {
        let other = |port| with_node_port("till", ip, "", port);
        assert_eq!(cluster.apply(&other("31000")), ["shop/cart", "shop/till"]);
        assert_eq!(told(&cluster), text("Service shop/till's"));
        assert_eq!(cluster.apply(&other("31001")), ["shop/cart", "shop/till"]);
        assert_eq!(told(&cluster), [""; 0]);
        assert_eq!(cluster.apply(&other("31002")), ["shop/till"]);
    }
    // A node port of another protocol does not conflict.
    let udp = with_node_port("till", "172.30.0.2", "", "31000, protocol: UDP");
    cluster.apply(&udp);
    assert_eq!(told(&cluster), [""; 0]);
}

#[rstest]
#[case(", type: LoadBalancer, externalTrafficPolicy: Cluster, healthCheckNodePort: 31000")]
#[case(", type: NodePort, externalTrafficPolicy: Local, healthCheckNodePort: 31000")]
#[case(", type: LoadBalancer, externalTrafficPolicy: Local")]
fn only_load_balancers_with_policy_local_and_a_port_have_health_checks(#[case] rest: &str) {
    let cluster = Cluster::new(&service("cart", "172.30.0.1", rest));
    assert_eq!(cluster.plan("shop/cart").0.health_check, None);
}
