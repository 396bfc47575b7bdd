// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Frontends and backends of Gateways.

use proxy_common::EndpointSet;
use rstest::rstest;

use super::*;
use crate::{
    plan::PortPlan,
    testing::{backends, created, frontends, weights},
};

const PLAN: &str = "shop/gateway:edge";
const BALANCER: &str = "LoadBalancer 198.51.100.1:80";

fn ports(cluster: &Cluster) -> Vec<PortPlan> {
    let planned = cluster.gateway_plan(PLAN);
    assert_eq!(planned.warnings, []);
    planned.plan.ports
}

fn reached(port: &PortPlan) -> Vec<String> {
    backends(&port.v4, EndpointSet::CLUSTER)
}

#[test]
fn a_route_leads_from_the_given_address_to_the_endpoints_of_its_service() {
    let mut cluster = cluster(&[edge(ADDRESS), to(CART)]);
    let ports = ports(&cluster);
    assert_eq!((&*ports[0].name, ports.len()), ("web", 1));
    assert_eq!(frontends(&ports[0].v4), [BALANCER]);
    assert_eq!(reached(&ports[0]), ["10.40.1.1:8080"]);
    // A change of the endpoints plans the service and the Gateway, and nothing else.
    let endpoints = [1, 9].map(|octet| endpoint(octet, "node-a", ""));
    let changed = slice("cart-1", "cart", &endpoints);
    assert_eq!(cluster.apply(&changed), ["shop/cart", PLAN]);
    let grown = &self::ports(&cluster)[0];
    assert_eq!(reached(grown), ["10.40.1.1:8080", "10.40.1.9:8080"]);
}

#[test]
fn tcp_and_udp_may_have_the_same_port() {
    let dns = "apiVersion: v1\nkind: Service\nmetadata: {name: dns, namespace: shop}\nspec: {clusterIP: 10.96.0.3, ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]}\n---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: dns-1, namespace: shop, labels: {kubernetes.io/service-name: dns}}\naddressType: IPv4\nports: [{name: dns, protocol: UDP, port: 5353}, {name: dns-tcp, protocol: TCP, port: 5354}]\nendpoints:\n    - {addresses: [10.40.1.5]}\n---\n";
    let listeners = "{name: udp, protocol: UDP, port: 53}, {name: tcp, protocol: TCP, port: 53}";
    let backend = "{name: dns, port: 53}";
    let cluster = cluster(&[
        dns.to_owned(),
        gateway("edge", ADDRESS, listeners),
        route("UDPRoute", "shop/dns", EDGE, backend),
        route("TCPRoute", "shop/dns", EDGE, backend),
    ]);
    let ports = ports(&cluster);
    assert_eq!(reached(&ports[0]), ["10.40.1.5:5353"]);
    assert_eq!(reached(&ports[1]), ["10.40.1.5:5354"]);
}

#[test]
fn a_listener_serves_the_oldest_of_its_routes_and_the_next_when_that_is_gone() {
    let till = route("TCPRoute", "shop/a", EDGE, "{name: till, port: 80}");
    let cart = route("TCPRoute", "shop/b", EDGE, CART);
    let mut cluster = cluster(&[
        edge(ADDRESS),
        created("2026-01-02", &till),
        created("2026-01-01", &cart),
    ]);
    assert_eq!(reached(&ports(&cluster)[0]), ["10.40.1.1:8080"]);
    let (writes, warnings) = cluster.report();
    let listener = &written(&writes, "Gateway shop/edge")["listeners"][0];
    assert_eq!(listener["attachedRoutes"], 2);
    // The other one is told.
    let told = "TCPRoute shop/a: listener web serves the older TCPRoute shop/b in its place";
    assert!(warnings[0].starts_with(told), "{warnings:?}");
    cluster.delete(crate::model::Kind::TcpRoute, "shop/b");
    let of_till = ["10.40.1.2:8080", "10.40.1.3:8080"];
    assert_eq!(reached(&ports(&cluster)[0]), of_till);
    let told = status(&mut cluster, "TCPRoute shop/a").to_string();
    assert!(!told.contains("older"), "{told}");
}

#[test]
fn a_listener_without_a_route_or_with_missing_backends_refuses_connections() {
    for more in [
        String::new(),
        to("{name: none, port: 80}"),
        to("{name: cart, port: 80, weight: 0}"),
    ] {
        let cluster = cluster(&[edge(ADDRESS), more]);
        let port = &ports(&cluster)[0];
        assert_eq!(frontends(&port.v4), [BALANCER]);
        let has = proxy_common::ServiceFlags::HAS_ENDPOINTS;
        assert!(!port.v4.frontends[0].flags.has(has));
    }
}

/// How weights become shares: `gateway::weights`. Here the same Service is named twice, and one
/// that does not exist or has no endpoints. KUBE: its share of connections is refused.
#[rstest]
#[case("{name: till, port: 80, weight: 2}, {name: cart, port: 80, weight: 2}",
    &["10.40.1.1:8080 3", "10.40.1.2:8080 1", "10.40.1.3:8080 1"])]
#[case("{name: none, port: 80, weight: 3}", &["10.40.1.1:8080 1", "192.168.40.2:1 3"])]
#[case("{name: empty, port: 80, weight: 3}", &["10.40.1.1:8080 1", "192.168.40.2:1 3"])]
fn backends_have_their_share(#[case] others: &str, #[case] expected: &[&str]) {
    let cluster = cluster(&[
        NODE.to_owned(),
        service("empty", "10.96.0.9", ""),
        edge(ADDRESS),
        to(&format!("{CART}, {others}")),
    ]);
    let port = &ports(&cluster)[0];
    let each = reached(port).into_iter().zip(&port.v4.backends);
    let each = each.map(|(at, backend)| format!("{at} {}", backend.weight));
    assert_eq!(Vec::from_iter(each), expected);
}

#[test]
fn a_gateway_without_addresses_is_served_where_its_service_is() {
    let mut cluster = cluster(&[edge(""), to(CART)]);
    assert_eq!(frontends(&ports(&cluster)[0].v4), [""; 0]);
    // The Service itself has no plan: its frontends are the Gateway's.
    assert_eq!(cluster.apply(MADE), ["shop/gateway-edge", PLAN]);
    let (plan, _) = cluster.plan("shop/gateway-edge");
    assert_eq!(plan.ports, []);
    let port = &ports(&cluster)[0];
    let expected = "ClusterIp 10.96.0.50:80, LoadBalancer 203.0.113.7:80, NodePort 0.0.0.0:30080";
    assert_eq!(frontends(&port.v4).join(", "), expected);
    assert_eq!(reached(port), ["10.40.1.1:8080"]);
    let said = status(&mut cluster, "Gateway shop/edge");
    let address = serde_json::json!([{"type": "IPAddress", "value": "203.0.113.7"}]);
    assert_eq!(said["addresses"], address);
}

#[test]
fn a_copy_of_that_service_or_one_that_no_gateway_owns_is_served_as_any() {
    let copy = MADE.replace("name: gateway-edge", "name: copy");
    let unowned = MADE.replace("kind: Gateway", "kind: ConfigMap");
    for (service, name) in [(copy, "shop/copy"), (unowned, "shop/gateway-edge")] {
        let mut cluster = cluster(&[service]);
        let (plan, _) = cluster.plan(name);
        assert_eq!(frontends(&plan.ports[0].v4)[0], "ClusterIp 10.96.0.50:80");
        assert_eq!(cluster.report().0.len(), 1, "only the class has news");
    }
}

/// Of Services and Gateways the older has the port.
#[test]
fn clashes_are_said_in_status_and_warning_and_end_with_their_cause() {
    let young = gateway("young", ADDRESS, TCP).replace("2026-01-01", "2026-02-01");
    let parents = format!("{EDGE}, {{name: young}}");
    let route = route("TCPRoute", "shop/cart", &parents, CART);
    let mut cluster = cluster(&[edge(ADDRESS), young, route]);
    let reason = |holder: &str| {
        format!(
            "load balancer IP 198.51.100.1:80/TCP already belongs to {holder}, which is older (or comes first by name). This one does not get it: remove it from one of the two"
        )
    };
    let planned = cluster.gateway_plan("shop/gateway:young");
    assert_eq!(planned.warnings[0].object, "Gateway shop/young");
    assert_eq!(planned.warnings[0].reason, reason("Gateway shop/edge"));
    assert_eq!(frontends(&planned.plan.ports[0].v4), [""; 0]);
    let said = status(&mut cluster, "Gateway shop/young");
    let expected = "Accepted=True ListenersNotValid, Programmed=False Invalid";
    assert_eq!(conditions(&said), expected);
    let listener = &said["listeners"][0];
    assert!(conditions(listener).starts_with("Accepted=False PortUnavailable, "));
    let message = &listener["conditions"][0]["message"];
    assert_eq!(*message, reason("Gateway shop/edge"));
    // A younger Service takes it from none, an older one from both.
    for named in [
        ", type: LoadBalancer}\nstatus: {loadBalancer: {ingress: [{ip: 198.51.100.1}]}",
        ", externalIPs: [198.51.100.1]",
    ] {
        let service = service("web", "10.96.0.9", named);
        cluster.apply(&created("2026-03-01", &service));
        assert_eq!(frontends(&ports(&cluster)[0].v4), [BALANCER]);
        assert_eq!(cluster.plan("shop/web").1.len(), 1);
        cluster.apply(&created("2025-12-01", &service));
    }
    let planned = cluster.gateway_plan(PLAN);
    assert_eq!(planned.warnings[0].object, "Gateway shop/edge");
    assert_eq!(planned.warnings[0].reason, reason("Service shop/web"));
    assert_eq!(frontends(&cluster.plan("shop/web").0.ports[0].v4).len(), 2);
    cluster.delete(crate::model::Kind::Service, "shop/web");
    assert_eq!(frontends(&ports(&cluster)[0].v4), [BALANCER]);
    cluster.delete(crate::model::Kind::Gateway, "shop/edge");
    let said = status(&mut cluster, "Gateway shop/young");
    assert_eq!(conditions(&said), FINE);
}

/// A Gateway whose Service has `externalTrafficPolicy: Local`, the services `a` with endpoints 1, 2
/// and 3 and `b` with 4, on these nodes, and a route to both with equal weights.
fn with_local_policy(nodes: [&str; 4]) -> Cluster {
    let [one, two, three, four] = nodes;
    let of_a = [(1, one), (2, two), (3, three)].map(|(octet, node)| endpoint(octet, node, ""));
    let local = "type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 32000";
    cluster(&[
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
    let planned = with_local_policy(nodes).gateway_plan(PLAN);
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
    let mut cluster = with_local_policy(["node-b"; 4]);
    assert_eq!(cluster.plan("shop/gateway-edge").0.health_check, None);
    let node_port = service("x", "10.96.0.9", "").replace("port: 80", "port: 80, nodePort: 32000");
    assert_eq!(cluster.apply(&node_port), [PLAN, "shop/x"]);
    let warning = cluster.gateway_plan(PLAN).warnings[0].to_string();
    let begins = "Gateway shop/edge: healthCheckNodePort 32000 is Service shop/x's node port";
    assert!(warning.starts_with(begins), "{warning}");
}
