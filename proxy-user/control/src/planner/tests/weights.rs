// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests how the weights of slices reach the backends, and what weight 0 does.

use proxy_common::{EndpointSet, FrontendKind, ServiceFlags};
use rstest::rstest;

use super::{
    DRAINING, LOCAL_BALANCER, READY, UNREADY, ZONE_NODE, flags,
    hints::{A, B},
    port,
};
use crate::{
    plan::PortPlan,
    testing::{Cluster, endpoint, service, slice},
};

/// A slice's weight, and its endpoints: last octet, node, and more fields.
type Slice<'a> = (&'a str, Vec<(u8, &'a str, &'a str)>);

fn cluster(slices: &[Slice<'_>]) -> Cluster {
    let mut yaml = ZONE_NODE.to_owned() + &service("cart", "172.30.0.1", LOCAL_BALANCER);
    for (n, (weight, endpoints)) in slices.iter().enumerate() {
        let endpoints: Vec<_> = endpoints
            .iter()
            .map(|(octet, node, rest)| endpoint(*octet, node, rest))
            .collect();
        let annotation = format!("annotations: {{service.portolan.dev/weight: '{weight}'}}, ");
        let slice = slice(&format!("cart-{n}"), "cart", &endpoints);
        yaml += &slice.replace("metadata: {", &format!("metadata: {{{annotation}"));
    }
    Cluster::new(&yaml)
}

/// Returns the last octets and weights of the backends in a set.
fn weights(plan: &PortPlan, set: EndpointSet) -> Vec<(u8, u32)> {
    let backends = plan.v4.backends.iter();
    let chosen = backends.filter(|backend| backend.sets.intersects(set));
    chosen.map(|b| (b.address.octets[3], b.weight)).collect()
}

#[rstest]
#[case::each_slice_has_its_weight(
    &[("3", vec![(1, "node-a", READY), (2, "node-b", READY)]), ("256", vec![(3, "node-b", READY)])],
    &[(1, 3), (2, 3), (3, 256)], &[(1, 3)])]
#[case::the_larger_of_two_counts(
    &[("3", vec![(1, "node-a", READY)]), ("5", vec![(1, "node-a", READY)])], &[(1, 5)], &[(1, 5)])]
#[case::of_two_the_ready_one_counts_first(
    &[("3", vec![(1, "node-a", READY)]), ("5", vec![(1, "node-a", UNREADY)])], &[(1, 3)], &[(1, 3)])]
#[case::weight_0_beside_others_stays_in_its_sets(
    &[("0", vec![(1, "node-a", READY)]), ("5", vec![(2, "node-a", READY)])],
    &[(1, 0), (2, 5)], &[(1, 0), (2, 5)])]
#[case::what_drains_serves_when_all_ready_ones_have_weight_0(
    &[("0", vec![(1, "node-a", READY)]), ("5", vec![(2, "node-a", DRAINING)])],
    &[(1, 0), (2, 5)], &[(1, 0), (2, 5)])]
#[case::what_drains_with_weight_0_does_not_serve(
    &[("0", vec![(1, "node-a", DRAINING)]), ("5", vec![(2, "node-b", DRAINING)])], &[(2, 5)], &[])]
#[case::each_set_falls_back_for_itself(
    &[("0", vec![(1, "node-a", READY)]), ("5", vec![(2, "node-a", DRAINING), (3, "node-b", READY)])],
    &[(1, 0), (3, 5)], &[(1, 0), (2, 5)])]
#[case::hints_for_this_zone_count_only_with_a_weight(
    &[("0", vec![(1, "node-b", A)]), ("5", vec![(2, "node-b", B)])], &[(1, 0), (2, 5)], &[])]
#[case::hints_may_be_missing_at_weight_0(
    &[("0", vec![(1, "node-b", "")]), ("5", vec![(2, "node-b", A), (3, "node-b", B)])], &[(2, 5)], &[])]
fn weights_reach_the_backends(
    #[case] slices: &[Slice<'_>],
    #[case] cluster_set: &[(u8, u32)],
    #[case] local_set: &[(u8, u32)],
) {
    let plan = port(&cluster(slices), "shop/cart");
    assert_eq!(weights(&plan, EndpointSet::CLUSTER), cluster_set);
    assert_eq!(weights(&plan, EndpointSet::LOCAL), local_set);
    let frontend = flags(&plan.v4, FrontendKind::ClusterIp);
    assert!(frontend.has(ServiceFlags::HAS_ENDPOINTS));
}

#[test]
fn a_service_whose_endpoints_all_have_weight_0_rejects_like_one_without_endpoints() {
    let cluster = cluster(&[("0", vec![(1, "node-a", READY), (2, "node-b", READY)])]);
    let (plan, _) = cluster.plan("shop/cart");
    assert_eq!(plan.health_check.expect("a port").local_endpoints, 0);
    assert_eq!(plan.lacks_local_endpoints(), [false, false, true, false]);
    assert!(plan.is_weighted());
    let [port] = &plan.ports[..] else {
        panic!("{plan:?}")
    };
    let all = [(1, 0), (2, 0)];
    assert_eq!(weights(port, EndpointSet::CLUSTER), all);
    for frontend in &port.v4.frontends {
        assert!(!frontend.flags.has(ServiceFlags::HAS_ENDPOINTS));
    }
}

#[test]
fn endpoints_without_the_annotation_have_weight_1() {
    let slices = slice("cart-1", "cart", &[endpoint(1, "node-a", READY)]);
    let cluster = Cluster::new(&(service("cart", "172.30.0.1", "") + &slices));
    assert!(!cluster.plan("shop/cart").0.is_weighted());
    let plan = port(&cluster, "shop/cart");
    assert_eq!(weights(&plan, EndpointSet::CLUSTER), [(1, 1)]);
}
