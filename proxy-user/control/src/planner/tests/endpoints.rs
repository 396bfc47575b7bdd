// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests which endpoints of which slices become backends, and in which sets.

use proxy_common::{EndpointSet, Protocol, ServiceFlags};
use rstest::rstest;

use super::{DRAINING, GONE, LOCAL_BALANCER, READY, UNREADY, octets, port};
use crate::{
    model::Kind,
    testing::{Cluster, backends, endpoint, service, slice},
};

#[rstest]
#[case::ready_ones_only(&[(1, "node-a", READY), (2, "node-b", UNREADY)], &[1], &[1], true)]
#[case::nothing_ready_then_what_drains(&[(1, "node-a", DRAINING), (2, "node-b", DRAINING), (3, "node-b", GONE)], &[1, 2], &[1], true)]
#[case::each_set_falls_back_for_itself(&[(1, "node-a", DRAINING), (2, "node-b", READY)], &[2], &[1], true)]
#[case::a_ready_local_one_ends_the_fallback(&[(1, "node-a", DRAINING), (2, "node-a", READY)], &[2], &[2], true)]
#[case::ready_elsewhere_only(&[(2, "node-b", READY)], &[2], &[], true)]
#[case::draining_elsewhere_only(&[(2, "node-b", DRAINING)], &[2], &[], true)]
#[case::none_usable(&[(1, "node-a", UNREADY), (2, "node-b", GONE)], &[], &[], false)]
#[case::nothing_said_means_ready(&[(1, "node-a", ", conditions: {}")], &[1], &[1], true)]
#[case::serving_is_true_unless_said(&[(1, "node-a", ", conditions: {ready: false, terminating: true}")], &[1], &[1], true)]
#[case::not_ready_addresses_are_published_as_ready(&[(1, "node-a", ", conditions: {ready: true, serving: false, terminating: true}")], &[1], &[1], true)]
fn endpoints_are_chosen_by_readiness_for_each_set(
    #[case] endpoints: &[(u8, &str, &str)],
    #[case] cluster_set: &[u8],
    #[case] local_set: &[u8],
    #[case] has_endpoints: bool,
) {
    let endpoints: Vec<_> = endpoints
        .iter()
        .map(|(octet, node, rest)| endpoint(*octet, node, rest))
        .collect();
    let cluster = Cluster::new(
        &(service("cart", "172.30.0.1", LOCAL_BALANCER) + &slice("cart-1", "cart", &endpoints)),
    );
    let plan = port(&cluster, "shop/cart");
    assert_eq!(octets(&plan.v4, EndpointSet::CLUSTER), cluster_set);
    assert_eq!(octets(&plan.v4, EndpointSet::LOCAL), local_set);
    for frontend in &plan.v4.frontends {
        assert_eq!(
            frontend.flags.has(ServiceFlags::HAS_ENDPOINTS),
            has_endpoints
        );
    }
}

#[test]
fn every_serving_endpoint_is_a_backend_whether_selected_or_not() {
    let endpoints = [
        endpoint(3, "node-b", DRAINING),
        endpoint(1, "node-a", READY),
        endpoint(2, "node-b", UNREADY),
    ];
    let cluster =
        Cluster::new(&(service("cart", "172.30.0.1", "") + &slice("cart-1", "cart", &endpoints)));
    let plan = port(&cluster, "shop/cart");
    let all: Vec<_> = plan
        .v4
        .backends
        .iter()
        .map(|b| (b.address.octets[3], b.sets))
        .collect();
    assert_eq!(all, [(1, EndpointSet::CLUSTER), (3, EndpointSet::NONE)]);
}

#[test]
fn ports_are_matched_by_name_and_protocol_and_may_differ_per_slice() {
    let yaml = "
apiVersion: v1
kind: Service
metadata: {name: mix, namespace: shop}
spec:
  clusterIP: 172.30.0.1
  ports:
    - {name: web, port: 80, targetPort: http}
    - {name: web, port: 80, protocol: UDP}
    - {name: admin, port: 81}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: mix-1, namespace: shop, labels: {kubernetes.io/service-name: mix}}
addressType: IPv4
ports: [{name: web, port: 8080}, {name: other, port: 9}]
endpoints: [{addresses: [10.40.1.1]}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: mix-2, namespace: shop, labels: {kubernetes.io/service-name: mix}}
addressType: IPv4
ports: [{name: web, port: 8081}, {name: web, protocol: UDP, port: 53}]
endpoints: [{addresses: [10.40.1.2]}, {addresses: [10.40.1.1]}]
";
    let (plan, warnings) = Cluster::new(yaml).plan("shop/mix");
    assert_eq!(warnings, []);
    let [web, udp, admin] = &plan.ports[..] else {
        panic!("{plan:?}")
    };
    assert_eq!(
        backends(&web.v4, EndpointSet::CLUSTER),
        ["10.40.1.1:8080", "10.40.1.1:8081", "10.40.1.2:8081"]
    );
    assert_eq!(udp.protocol, Protocol::UDP);
    assert_eq!(
        backends(&udp.v4, EndpointSet::CLUSTER),
        ["10.40.1.1:53", "10.40.1.2:53"]
    );
    assert_eq!(admin.v4.backends, []);
}

#[test]
fn an_endpoint_in_several_slices_counts_once_with_the_best_conditions() {
    let slices = slice(
        "cart-1",
        "cart",
        &[endpoint(1, "node-b", READY), endpoint(2, "node-b", UNREADY)],
    ) + &slice(
        "cart-2",
        "cart",
        &[
            endpoint(1, "node-a", DRAINING),
            endpoint(2, "node-b", READY),
        ],
    );
    let cluster = Cluster::new(&(service("cart", "172.30.0.1", LOCAL_BALANCER) + &slices));
    let plan = port(&cluster, "shop/cart");
    assert_eq!(octets(&plan.v4, EndpointSet::CLUSTER), [2]);
    assert_eq!(octets(&plan.v4, EndpointSet::LOCAL), [1]);
}

#[test]
fn each_family_with_a_cluster_ip_has_its_own_endpoints_and_others_none() {
    let yaml = "
apiVersion: v1
kind: Service
metadata: {name: both, namespace: shop}
spec: {clusterIP: 172.30.0.1, clusterIPs: [172.30.0.1, 'fd00:30::1'], ports: [{port: 80, nodePort: 30080}]}
---
apiVersion: v1
kind: Service
metadata: {name: six, namespace: shop}
spec: {clusterIP: 'fd00:30::2', ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: both-4, namespace: shop, labels: {kubernetes.io/service-name: both}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.40.1.1]}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: both-6, namespace: shop, labels: {kubernetes.io/service-name: both}}
addressType: IPv6
ports: [{port: 8080}]
endpoints: [{addresses: ['fd00:40::1']}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: six-4, namespace: shop, labels: {kubernetes.io/service-name: six}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.40.1.2]}]
";
    let cluster = Cluster::new(yaml);
    let (both, _) = cluster.plan("shop/both");
    let [only] = &both.ports[..] else {
        panic!("{both:?}")
    };
    assert_eq!((only.v4.frontends.len(), only.v4.backends.len()), (2, 1));
    assert_eq!((only.v6.frontends.len(), only.v6.backends.len()), (2, 1));
    assert_eq!((both.guarded_v4.len(), both.guarded_v6.len()), (1, 1));
    let (six, _) = cluster.plan("shop/six");
    let [only] = &six.ports[..] else {
        panic!("{six:?}")
    };
    assert_eq!((only.v4.frontends.len(), only.v4.backends.len()), (0, 0));
    assert_eq!((only.v6.frontends.len(), only.v6.backends.len()), (1, 0));
    assert!(!only.v6.frontends[0].flags.has(ServiceFlags::HAS_ENDPOINTS));
}

#[test]
fn a_slice_relabelled_to_another_service_moves_its_endpoints_there() {
    let services = service("a", "172.30.0.1", "") + &service("b", "172.30.0.2", "");
    let endpoints = [endpoint(1, "node-a", READY)];
    let mut cluster = Cluster::new(&(services + &slice("s", "a", &endpoints)));
    assert_eq!(cluster.apply(&slice("s", "a", &endpoints)), [""; 0]);
    assert_eq!(
        cluster.apply(&slice("s", "b", &endpoints)),
        ["shop/a", "shop/b"]
    );
    assert_eq!(port(&cluster, "shop/a").v4.backends, []);
    assert_eq!(port(&cluster, "shop/b").v4.backends.len(), 1);
    let labelled = slice("s", "b", &endpoints)
        .replace("labels: {", "labels: {service.kubernetes.io/headless: '', ");
    assert_eq!(cluster.apply(&labelled), ["shop/b"]);
    assert_eq!(port(&cluster, "shop/b").v4.backends, []);
    cluster.apply(&slice("s", "b", &endpoints));
    assert_eq!(cluster.delete(Kind::EndpointSlice, "shop/s"), ["shop/b"]);
    assert_eq!(port(&cluster, "shop/b").v4.backends, []);
}
