// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The planner against kube-proxy's semantics, as tables.

use proptest::prelude::*;
use proxy_common::{EndpointSet, FrontendKind, Port, Protocol, ServiceFlags, V4};
use rstest::rstest;

use crate::{
    model::Kind,
    plan::{FamilyPlan, PortPlan},
    testing::{Cluster, backends, endpoint, frontends, service, slice},
};

const READY: &str = "";
const UNREADY: &str = ", conditions: {ready: false, serving: false, terminating: false}";
const DRAINING: &str = ", conditions: {ready: false, serving: true, terminating: true}";
const GONE: &str = ", conditions: {ready: false, serving: false, terminating: true}";
const ZONE_NODE: &str = "apiVersion: v1\nkind: Node\nmetadata: {name: node-a, labels: {topology.kubernetes.io/zone: zone-a}}\nstatus: {addresses: [{type: InternalIP, address: 192.168.40.2}]}\n---\n";
const LOCAL_BALANCER: &str = ", type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 31000}\nstatus: {loadBalancer: {ingress: [{ip: 198.51.100.1}]}";

fn port(cluster: &Cluster, text: &str) -> PortPlan {
    let (plan, warnings) = cluster.plan(text);
    assert_eq!(warnings, []);
    plan.ports.into_iter().next().expect("a port")
}

fn flags(family: &FamilyPlan<V4>, kind: FrontendKind) -> ServiceFlags {
    let found = family.frontends.iter().find(|f| f.kind() == kind);
    found.expect("a frontend of the kind").flags
}

/// Octets of the endpoints that a set must have.
fn octets(family: &FamilyPlan<V4>, set: EndpointSet) -> Vec<u8> {
    let chosen = family.backends.iter().filter(|b| b.sets.intersects(set));
    chosen.map(|b| b.address.octets[3]).collect()
}

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

const A: &str = ", hints: {forZones: [{name: zone-a}]}";
const B: &str = ", hints: {forZones: [{name: zone-b}]}";
const AB: &str = ", hints: {forZones: [{name: zone-b}, {name: zone-a}]}";
const HERE: &str = ", hints: {forZones: [{name: zone-a}], forNodes: [{name: node-a}]}";
const THERE: &str = ", hints: {forZones: [{name: zone-a}], forNodes: [{name: node-b}]}";
const UNREADY_PLAIN: &str = ", conditions: {ready: false}";

#[rstest]
#[case::this_zones(&[A, B, AB], &[1, 3])]
#[case::one_without_hints_undoes_all(&[A, B, ""], &[1, 2, 3])]
#[case::none_for_this_zone(&[B, B], &[1, 2])]
#[case::an_unready_one_without_hints_does_no_harm(&[A, B, UNREADY_PLAIN], &[1])]
#[case::this_nodes(&[HERE, THERE, THERE], &[1])]
#[case::no_one_for_this_node_then_its_zones(&[THERE, A, B], &[1, 2])]
#[case::one_without_node_hints_then_zones(&[HERE, A, B], &[1, 2])]
fn hints_narrow_the_cluster_set_when_they_are_whole(
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

#[rstest]
#[case::cluster("", false, false)]
#[case::internal_local(", internalTrafficPolicy: Local", true, false)]
#[case::external_local(", externalTrafficPolicy: Local", false, true)]
#[case::both_local(
    ", internalTrafficPolicy: Local, externalTrafficPolicy: Local",
    true,
    true
)]
fn each_kind_of_frontend_has_the_sets_its_policy_names(
    #[case] policy: &str,
    #[case] internal_local: bool,
    #[case] external_local: bool,
) {
    let rest = format!(
        ", type: LoadBalancer, externalIPs: [192.0.2.1]{policy}}}\nstatus: {{loadBalancer: {{ingress: [{{ip: 198.51.100.1}}]}}",
    );
    let yaml =
        service("cart", "172.30.0.1", &rest).replace("port: 80}", "port: 80, nodePort: 30080}");
    let cluster = Cluster::new(&(yaml + &slice("s", "cart", &[endpoint(1, "node-a", READY)])));
    let plan = port(&cluster, "shop/cart");
    assert_eq!(
        frontends(&plan.v4),
        [
            "cluster 172.30.0.1:80",
            "external 192.0.2.1:80",
            "balancer 198.51.100.1:80",
            "node 0.0.0.0:30080"
        ]
    );
    let cluster_ip = flags(&plan.v4, FrontendKind::ClusterIp);
    assert!(!cluster_ip.has(ServiceFlags::EXTERNAL_LOCAL));
    let set = |local| {
        if local {
            EndpointSet::LOCAL
        } else {
            EndpointSet::CLUSTER
        }
    };
    assert_eq!(cluster_ip.set_of_block(false), set(internal_local));
    assert_eq!(cluster_ip.set_of_block(true), set(internal_local));
    for kind in [
        FrontendKind::ExternalIp,
        FrontendKind::LoadBalancer,
        FrontendKind::NodePort,
    ] {
        let flags = flags(&plan.v4, kind);
        assert_eq!(flags.has(ServiceFlags::EXTERNAL_LOCAL), external_local);
        assert_eq!(flags.set_of_block(true), set(external_local));
        assert_eq!(flags.set_of_block(false), EndpointSet::CLUSTER);
    }
}

#[test]
fn external_policy_local_of_a_cluster_ip_service_counts_only_with_external_ips() {
    let policy = ", type: ClusterIP, externalTrafficPolicy: Local";
    let with = service(
        "with",
        "172.30.0.1",
        &format!("{policy}, externalIPs: [192.0.2.1]"),
    );
    let without = service("without", "172.30.0.2", policy);
    let cluster = Cluster::new(&(with + &without));
    let plan = port(&cluster, "shop/with");
    assert!(flags(&plan.v4, FrontendKind::ExternalIp).has(ServiceFlags::EXTERNAL_LOCAL));
    assert_eq!(
        frontends(&port(&cluster, "shop/without").v4),
        ["cluster 172.30.0.2:80"]
    );
}

#[rstest]
#[case::none("", 0)]
#[case::by_default(", sessionAffinity: ClientIP", 10_800)]
#[case::given(
    ", sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 3}}",
    3
)]
fn affinity_has_its_timeout_and_flag(#[case] rest: &str, #[case] timeout: u32) {
    let plan = port(
        &Cluster::new(&service("cart", "172.30.0.1", rest)),
        "shop/cart",
    );
    assert_eq!(plan.affinity_timeout, timeout);
    let flags = flags(&plan.v4, FrontendKind::ClusterIp);
    assert_eq!(flags.has(ServiceFlags::AFFINITY), timeout > 0);
}

fn balancer(ranges: &str) -> String {
    let rest = format!(
        ", type: LoadBalancer, externalIPs: [192.0.2.1], loadBalancerSourceRanges: {ranges}}}\nstatus: {{loadBalancer: {{ingress: [{{ip: 198.51.100.1}}, {{ip: 198.51.100.2, ipMode: Proxy}}]}}",
    );
    service("cart", "172.30.0.1", &rest)
}

#[rstest]
#[case::none_given("[]", &[], false)]
#[case::blanks_are_trimmed("[' 203.0.113.0/24 ']", &["203.0.113.0/24"], true)]
#[case::the_other_family_leaves_this_one_open("['2001:db8::/32']", &["2001:db8::/32"], false)]
#[case::a_range_with_the_node_lets_the_balancers_address_in("[192.168.0.0/16]", &["192.168.0.0/16", "198.51.100.1/32"], true)]
fn source_ranges_count_for_the_balancers_address_only(
    #[case] ranges: &str,
    #[case] expected: &[&str],
    #[case] restricted: bool,
) {
    let cluster = Cluster::new(&(ZONE_NODE.to_owned() + &balancer(ranges)));
    let plan = port(&cluster, "shop/cart");
    let planned: Vec<_> = plan.source_ranges.iter().map(ToString::to_string).collect();
    assert_eq!(planned, expected);
    assert_eq!(
        frontends(&plan.v4),
        [
            "cluster 172.30.0.1:80",
            "external 192.0.2.1:80",
            "balancer 198.51.100.1:80"
        ]
    );
    for frontend in &plan.v4.frontends {
        let balancer = frontend.kind() == FrontendKind::LoadBalancer;
        assert_eq!(
            frontend.flags.has(ServiceFlags::SOURCE_RANGES),
            restricted && balancer
        );
    }
}

#[test]
fn ranges_of_which_none_can_be_read_let_nobody_in() {
    let plan = port(&Cluster::new(&balancer("[everyone]")), "shop/cart");
    assert_eq!(plan.source_ranges, []);
    assert!(flags(&plan.v4, FrontendKind::LoadBalancer).has(ServiceFlags::SOURCE_RANGES));
}

#[test]
fn a_new_internal_ip_dirties_services_with_source_ranges_only() {
    let mut cluster =
        Cluster::new(&(balancer("[192.168.0.0/16]") + &service("b", "172.30.0.2", "")));
    assert_eq!(cluster.apply(ZONE_NODE), ["shop/cart"]);
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
fn an_endpoint_in_several_slices_is_one_and_counts_by_the_best_that_is_said_of_it() {
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
fn each_family_has_its_own_endpoints_and_a_family_without_cluster_ip_has_none() {
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

#[rstest]
#[case::headless("clusterIP: None", "")]
#[case::headless_by_list("clusterIP: None, clusterIPs: [None]", "")]
#[case::without_cluster_ip("type: ClusterIP", "")]
#[case::external_name(
    "clusterIP: 172.30.0.1, type: ExternalName, externalName: db.example.net",
    ""
)]
#[case::another_proxys(
    "clusterIP: 172.30.0.1",
    ", labels: {service.kubernetes.io/service-proxy-name: other}"
)]
#[case::labelled_headless(
    "clusterIP: 172.30.0.1",
    ", labels: {service.kubernetes.io/headless: ''}"
)]
fn services_for_others_are_not_served_until_that_ends(#[case] spec: &str, #[case] labels: &str) {
    let unserved = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: cart, namespace: shop{labels}}}\nspec: {{{spec}, externalIPs: [192.0.2.1], ports: [{{name: http, port: 80}}]}}\n",
    );
    let mut cluster = Cluster::new(&unserved);
    assert_eq!(cluster.plan("shop/cart").0.ports, []);
    cluster.apply(&service("cart", "172.30.0.1", ""));
    assert_eq!(cluster.plan("shop/cart").0.ports.len(), 1);
    assert_eq!(cluster.apply(&unserved), ["shop/cart"]);
    assert_eq!(cluster.plan("shop/cart"), Default::default());
}

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

fn external(name: &str, cluster_ip: &str, created: &str) -> String {
    service(name, cluster_ip, ", externalIPs: [192.0.2.1]")
        .replace("namespace: shop", &format!("namespace: shop{created}"))
}

#[test]
fn the_older_service_has_a_frontend_that_two_want_and_the_other_gets_it_later() {
    let mut cluster = Cluster::new(&external(
        "a",
        "172.30.0.1",
        ", creationTimestamp: '2026-02-01T00:00:00Z'",
    ));
    assert_eq!(frontends(&port(&cluster, "shop/a").v4).len(), 2);
    let older = external(
        "b",
        "172.30.0.2",
        ", creationTimestamp: '2026-01-01T00:00:00Z'",
    );
    assert_eq!(cluster.apply(&older), ["shop/a", "shop/b"]);

    assert_eq!(frontends(&port(&cluster, "shop/b").v4).len(), 2);
    let (plan, warnings) = cluster.plan("shop/a");
    assert_eq!(frontends(&plan.ports[0].v4), ["cluster 172.30.0.1:80"]);
    let [warning] = &warnings[..] else {
        panic!("{warnings:?}")
    };
    assert_eq!(
        warning.to_string(),
        "Service shop/a: external IP 192.0.2.1:80/TCP is already served for Service shop/b, which is older or comes first by name; it is not served for this one, remove it from one of the two"
    );

    assert_eq!(
        cluster.delete(Kind::Service, "shop/b"),
        ["shop/a", "shop/b"]
    );
    assert_eq!(frontends(&port(&cluster, "shop/a").v4).len(), 2);
}

#[test]
fn among_services_of_one_age_the_first_by_name_has_the_frontend() {
    let mut cluster =
        Cluster::new(&(external("b", "172.30.0.2", "") + &external("c", "172.30.0.3", "")));
    assert_eq!(cluster.plan("shop/b").1.len(), 0);
    assert_eq!(cluster.plan("shop/c").1.len(), 1);
    assert_eq!(
        cluster.apply(&external("a", "172.30.0.1", "")),
        ["shop/a", "shop/b", "shop/c"]
    );
    assert_eq!(cluster.plan("shop/b").1.len(), 1);
    // A service that stops wanting the address makes way as well.
    assert_eq!(
        cluster.apply(&service("a", "172.30.0.1", "")),
        ["shop/a", "shop/b", "shop/c"]
    );
    assert_eq!(cluster.plan("shop/b").1.len(), 0);
    // The loser's own going concerns nobody.
    assert_eq!(cluster.delete(Kind::Service, "shop/c"), ["shop/c"]);
}

#[test]
fn an_external_ip_that_is_anothers_cluster_ip_is_refused() {
    let yaml =
        service("a", "172.30.0.1", "") + &service("b", "172.30.0.2", ", externalIPs: [172.30.0.1]");
    let cluster = Cluster::new(&yaml);
    assert_eq!(cluster.plan("shop/a").1, []);
    let (plan, warnings) = cluster.plan("shop/b");
    assert_eq!(frontends(&plan.ports[0].v4), ["cluster 172.30.0.2:80"]);
    assert_eq!(warnings.len(), 1);
}

#[test]
fn one_cluster_ip_is_guarded_for_one_service_only() {
    let yaml = service("a", "172.30.0.1", "")
        + &service("b", "172.30.0.1", "").replace("port: 80", "port: 81");
    let cluster = Cluster::new(&yaml);
    let (a, b) = (cluster.plan("shop/a"), cluster.plan("shop/b"));
    assert_eq!((a.0.guarded_v4.len(), b.0.guarded_v4.len()), (1, 0));
    assert_eq!(frontends(&b.0.ports[0].v4), ["cluster 172.30.0.1:81"]);
}

#[test]
fn an_address_that_one_service_names_twice_is_one_frontend() {
    let rest = ", type: LoadBalancer, externalIPs: [192.0.2.1, 192.0.2.1], loadBalancerSourceRanges: [203.0.113.0/24]}\nstatus: {loadBalancer: {ingress: [{ip: 192.0.2.1}]}";
    let plan = port(
        &Cluster::new(&service("cart", "172.30.0.1", rest)),
        "shop/cart",
    );
    assert_eq!(
        frontends(&plan.v4),
        ["cluster 172.30.0.1:80", "external 192.0.2.1:80"]
    );
}

#[test]
fn two_ports_of_one_service_cannot_share_a_number() {
    let yaml = service("cart", "172.30.0.1", "").replace(
        "[{name: http, port: 80}]",
        "[{name: http, port: 80, nodePort: 30080}, {name: web, port: 80, nodePort: 30081}]",
    );
    let (plan, warnings) = Cluster::new(&yaml).plan("shop/cart");
    assert_eq!(
        frontends(&plan.ports[0].v4),
        ["cluster 172.30.0.1:80", "node 0.0.0.0:30080"]
    );
    assert_eq!(frontends(&plan.ports[1].v4), ["node 0.0.0.0:30081"]);
    let [warning] = &warnings[..] else {
        panic!("{warnings:?}")
    };
    assert!(
        warning.reason.contains("spec.ports[0] and spec.ports[1]"),
        "{warning}"
    );
}

#[test]
fn node_ports_of_different_protocols_do_not_collide() {
    let a = service("a", "172.30.0.1", ", type: NodePort")
        .replace("port: 80", "port: 80, nodePort: 30080");
    let b = service("b", "172.30.0.2", ", type: NodePort")
        .replace("port: 80", "port: 80, protocol: UDP, nodePort: 30080");
    let cluster = Cluster::new(&(a.clone() + &b));
    assert_eq!(cluster.plan("shop/b").1, []);
    let c = a
        .replace("name: a,", "name: c,")
        .replace("172.30.0.1", "172.30.0.3");
    let cluster = Cluster::new(&(a + &c));
    assert!(
        cluster.plan("shop/c").1[0]
            .reason
            .starts_with("node port 30080/TCP is already served")
    );
}

#[test]
fn a_slice_that_moves_takes_its_endpoints_along() {
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

#[test]
fn other_nodes_objects_change_nothing() {
    let mut cluster = Cluster::new(&(ZONE_NODE.to_owned() + &balancer("[192.168.0.0/16]")));
    assert_eq!(
        cluster.apply(
            &ZONE_NODE
                .replace("node-a", "node-b")
                .replace("zone-a", "zone-b")
        ),
        [""; 0]
    );
    assert_eq!(cluster.state.view().zone.as_deref(), Some("zone-a"));
}

fn any_endpoint() -> impl Strategy<Value = String> {
    let hints = prop::sample::select(vec!["", A, B, AB, HERE, THERE]);
    let conditions = prop::sample::select(vec![READY, UNREADY, DRAINING, GONE]);
    let node = prop::sample::select(vec!["node-a", "node-b"]);
    (1_u8..6, node, conditions, hints).prop_map(|(octet, node, conditions, hints)| {
        endpoint(octet, node, &format!("{conditions}{hints}"))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn plans_hold_what_the_datapath_counts_on(
        slices in prop::collection::vec(prop::collection::vec(any_endpoint(), 0..6), 0..4),
        policies in prop::sample::select(vec!["", ", internalTrafficPolicy: Local", ", externalTrafficPolicy: Local"]),
    ) {
        let yaml = |order: &mut dyn Iterator<Item = (usize, &Vec<String>)>| {
            let rest = format!(", type: LoadBalancer, externalIPs: [192.0.2.1]{policies}");
            let mut text = ZONE_NODE.to_owned() + &service("cart", "172.30.0.1", &rest);
            for (n, endpoints) in order {
                text += &slice(&format!("s{n}"), "cart", endpoints);
            }
            text
        };
        let forward = yaml(&mut slices.iter().enumerate());
        let backward = yaml(&mut slices.iter().enumerate().rev());
        let plan = port(&Cluster::new(&forward), "shop/cart");
        // The order in which slices arrive or are named does not matter.
        prop_assert_eq!(&plan, &port(&Cluster::new(&backward), "shop/cart"));
        let keys: Vec<_> = plan.v4.backends.iter().map(|b| (b.address, b.port)).collect();
        prop_assert!(keys.windows(2).all(|pair| pair[0] < pair[1]), "ordered, each once: {:?}", keys);
        let has_endpoints = plan.v4.frontends[0].flags.has(ServiceFlags::HAS_ENDPOINTS);
        let cluster_set = octets(&plan.v4, EndpointSet::CLUSTER);
        prop_assert_eq!(has_endpoints, !cluster_set.is_empty());
        prop_assert!(has_endpoints || octets(&plan.v4, EndpointSet::LOCAL).is_empty());
        prop_assert_eq!(plan.v4.frontends[0].port, Port::from_host(80));
    }
}
