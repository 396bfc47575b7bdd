// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Topology hints narrow the cluster set.

use proxy_common::EndpointSet;
use rstest::rstest;

use super::{LOCAL_BALANCER, ZONE_NODE, octets, port};
use crate::testing::{Cluster, endpoint, service, slice};

pub(super) const A: &str = ", hints: {forZones: [{name: zone-a}]}";
pub(super) const B: &str = ", hints: {forZones: [{name: zone-b}]}";
pub(super) const AB: &str = ", hints: {forZones: [{name: zone-b}, {name: zone-a}]}";
pub(super) const HERE: &str = ", hints: {forZones: [{name: zone-a}], forNodes: [{name: node-a}]}";
pub(super) const THERE: &str = ", hints: {forZones: [{name: zone-a}], forNodes: [{name: node-b}]}";
const UNREADY_PLAIN: &str = ", conditions: {ready: false}";

#[rstest]
#[case::this_zones(&[A, B, AB], &[1, 3])]
#[case::one_without_hints_undoes_all(&[A, B, ""], &[1, 2, 3])]
#[case::none_for_this_zone(&[B, B], &[1, 2])]
#[case::an_unready_one_without_hints_does_no_harm(&[A, B, UNREADY_PLAIN], &[1])]
#[case::this_nodes(&[HERE, THERE, THERE], &[1])]
#[case::no_one_for_this_node_then_its_zones(&[THERE, A, B], &[1, 2])]
#[case::one_without_node_hints_then_zones(&[HERE, A, B], &[1, 2])]
fn topology_hints_narrow_the_cluster_set_only_if_they_are_complete(
    #[case] hints: &[&str],
    #[case] expected: &[u8],
) {
    let endpoints: Vec<_> = (1..)
        .zip(hints)
        .map(|(n, hint)| endpoint(n, "node-c", hint))
        .collect();
    let cluster = Cluster::new(
        &(ZONE_NODE.to_owned()
            + &service("cart", "172.30.0.1", "")
            + &slice("cart-1", "cart", &endpoints)),
    );
    assert_eq!(
        octets(&port(&cluster, "shop/cart").v4, EndpointSet::CLUSTER),
        expected
    );
}

#[test]
fn a_node_without_a_zone_ignores_zone_hints() {
    let endpoints = [endpoint(1, "node-a", A), endpoint(2, "node-b", B)];
    let mut cluster =
        Cluster::new(&(service("cart", "172.30.0.1", "") + &slice("cart-1", "cart", &endpoints)));
    assert_eq!(
        octets(&port(&cluster, "shop/cart").v4, EndpointSet::CLUSTER),
        [1, 2]
    );
    assert_eq!(cluster.apply(ZONE_NODE), ["shop/cart"]);
    assert_eq!(
        octets(&port(&cluster, "shop/cart").v4, EndpointSet::CLUSTER),
        [1]
    );
}

#[test]
fn hints_do_not_touch_the_local_set() {
    let endpoints = [endpoint(1, "node-a", B), endpoint(2, "node-b", A)];
    let cluster = Cluster::new(
        &(ZONE_NODE.to_owned()
            + &service("cart", "172.30.0.1", LOCAL_BALANCER)
            + &slice("cart-1", "cart", &endpoints)),
    );
    let plan = port(&cluster, "shop/cart");
    assert_eq!(octets(&plan.v4, EndpointSet::CLUSTER), [2]);
    assert_eq!(octets(&plan.v4, EndpointSet::LOCAL), [1]);
}
