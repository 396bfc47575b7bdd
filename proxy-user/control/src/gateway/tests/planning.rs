// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Frontends and backends of Gateways.

use proxy_common::EndpointSet;
use rstest::rstest;

use super::*;
use crate::{
    plan::PortPlan,
    testing::{backends, frontends},
};

const PLAN: &str = "shop/gateway:edge";

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
    let mut cluster = cluster(&[
        gateway("edge", ADDRESS, TCP),
        route("TCPRoute", "shop/cart", EDGE, CART),
    ]);
    let ports = ports(&cluster);
    assert_eq!((&*ports[0].name, ports.len()), ("web", 1));
    assert_eq!(frontends(&ports[0].v4), ["balancer 198.51.100.1:80"]);
    assert_eq!(reached(&ports[0]), ["10.40.1.1:8080"]);
    // A change of the endpoints plans the service and the Gateway, and nothing else.
    let grown = slice(
        "cart-1",
        "cart",
        &[endpoint(1, "node-a", ""), endpoint(9, "node-a", "")],
    );
    assert_eq!(cluster.apply(&grown), ["shop/cart", PLAN]);
    assert_eq!(
        reached(&self::ports(&cluster)[0]),
        ["10.40.1.1:8080", "10.40.1.9:8080"]
    );
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
    let aged = |name: &str, day: u8, backend: &str| {
        route("TCPRoute", name, EDGE, backend).replace(
            "generation: 5",
            &format!("creationTimestamp: '2026-01-0{day}T00:00:00Z'"),
        )
    };
    let mut cluster = cluster(&[
        gateway("edge", ADDRESS, TCP),
        aged("shop/a", 2, "{name: till, port: 80}"),
        aged("shop/b", 1, CART),
    ]);
    assert_eq!(reached(&ports(&cluster)[0]), ["10.40.1.1:8080"]);
    let listener = &status(&mut cluster, "Gateway shop/edge")["listeners"][0];
    assert_eq!(listener["attachedRoutes"], 2);
    cluster.delete(crate::model::Kind::TcpRoute, "shop/b");
    assert_eq!(
        reached(&ports(&cluster)[0]),
        ["10.40.1.2:8080", "10.40.1.3:8080"]
    );
}

#[test]
fn a_listener_without_a_route_or_with_missing_backends_refuses_connections() {
    for more in [
        String::new(),
        route("TCPRoute", "shop/cart", EDGE, "{name: none, port: 80}"),
        route(
            "TCPRoute",
            "shop/cart",
            EDGE,
            "{name: cart, port: 80, weight: 0}",
        ),
    ] {
        let cluster = cluster(&[gateway("edge", ADDRESS, TCP), more]);
        let port = &ports(&cluster)[0];
        assert_eq!(frontends(&port.v4), ["balancer 198.51.100.1:80"]);
        let has = proxy_common::ServiceFlags::HAS_ENDPOINTS;
        assert!(!port.v4.frontends[0].flags.has(has));
    }
}

/// How weights become shares: `gateway::weights`. Here the same Service is named twice.
#[test]
fn backends_have_their_share() {
    let refs =
        format!("{CART}, {{name: till, port: 80, weight: 2}}, {{name: cart, port: 80, weight: 2}}");
    let cluster = cluster(&[
        gateway("edge", ADDRESS, TCP),
        route("TCPRoute", "shop/cart", EDGE, &refs),
    ]);
    let port = &ports(&cluster)[0];
    let weights: Vec<_> = port.v4.backends.iter().map(|b| b.weight).collect();
    assert_eq!(weights, [3, 1, 1]);
}

/// KUBE: connections to a backend that does not exist, or has no endpoints, are refused in
/// proportion to its weight.
#[rstest]
#[case("{name: none, port: 80, weight: 3}")]
#[case("{name: empty, port: 80, weight: 3}")]
fn the_share_of_a_missing_backend_goes_where_it_is_refused(#[case] missing: &str) {
    let cluster = cluster(&[
        NODE.to_owned(),
        service("empty", "10.96.0.9", ""),
        gateway("edge", ADDRESS, TCP),
        route("TCPRoute", "shop/cart", EDGE, &format!("{CART}, {missing}")),
    ]);
    let port = &ports(&cluster)[0];
    assert_eq!(reached(port), ["10.40.1.1:8080", "192.168.40.2:1"]);
    let weights: Vec<_> = port.v4.backends.iter().map(|b| b.weight).collect();
    assert_eq!(weights, [1, 3]);
}

#[test]
fn a_gateway_without_addresses_is_served_where_its_service_is() {
    let mut cluster = cluster(&[
        gateway("edge", "", TCP),
        route("TCPRoute", "shop/cart", EDGE, CART),
    ]);
    assert_eq!(frontends(&ports(&cluster)[0].v4), [""; 0]);
    // The Service itself has no plan: its frontends are the Gateway's.
    assert_eq!(cluster.apply(MADE), ["shop/gateway-edge", PLAN]);
    let (plan, _) = cluster.plan("shop/gateway-edge");
    assert_eq!(plan.ports, []);
    let port = &ports(&cluster)[0];
    assert_eq!(
        frontends(&port.v4),
        [
            "cluster 10.96.0.50:80",
            "balancer 203.0.113.7:80",
            "node 0.0.0.0:30080"
        ]
    );
    assert_eq!(reached(port), ["10.40.1.1:8080"]);
    let said = status(&mut cluster, "Gateway shop/edge");
    assert_eq!(
        said["addresses"],
        serde_json::json!([{"type": "IPAddress", "value": "203.0.113.7"}])
    );
}

#[test]
fn a_copy_of_that_service_that_no_gateway_owns_is_served_as_any() {
    let copy = MADE
        .replace("name: gateway-edge", "name: copy")
        .replace("kind: Gateway", "kind: ConfigMap");
    let mut cluster = cluster(&[copy]);
    let (plan, _) = cluster.plan("shop/copy");
    assert_eq!(frontends(&plan.ports[0].v4)[0], "cluster 10.96.0.50:80");
    assert_eq!(cluster.report().0.len(), 1, "only the class has news");
}

/// Of Services and Gateways the older has the port.
#[test]
fn clashes_are_said_in_status_and_warning_and_end_with_their_cause() {
    let young = gateway("young", ADDRESS, TCP).replace("2026-01-01", "2026-02-01");
    let mut cluster = cluster(&[
        gateway("edge", ADDRESS, TCP),
        young,
        route(
            "TCPRoute",
            "shop/cart",
            &format!("{EDGE}, {{name: young}}"),
            CART,
        ),
    ]);
    let reason = "load balancer IP 198.51.100.1:80/TCP already belongs to Gateway shop/edge, which is older (or comes first by name). This one does not get it: remove it from one of the two";
    let planned = cluster.gateway_plan("shop/gateway:young");
    assert_eq!(
        planned.warnings[0].to_string(),
        format!("Gateway shop/young: {reason}")
    );
    assert_eq!(frontends(&planned.plan.ports[0].v4), [""; 0]);
    let said = status(&mut cluster, "Gateway shop/young");
    assert_eq!(
        conditions(&said),
        [
            "Accepted=True ListenersNotValid",
            "Programmed=False Invalid"
        ]
    );
    let listener = &said["listeners"][0];
    assert_eq!(conditions(listener)[0], "Accepted=False PortUnavailable");
    assert_eq!(listener["conditions"][0]["message"], reason);
    // A younger Service takes it from none, an older one from both.
    for named in [
        ", type: LoadBalancer}\nstatus: {loadBalancer: {ingress: [{ip: 198.51.100.1}]}",
        ", externalIPs: [198.51.100.1]",
    ] {
        let younger = service("web", "10.96.0.9", named);
        cluster.apply(&younger.replace(
            "namespace: shop",
            "namespace: shop, creationTimestamp: '2026-03-01T00:00:00Z'",
        ));
        assert_eq!(
            frontends(&ports(&cluster)[0].v4),
            ["balancer 198.51.100.1:80"]
        );
        assert_eq!(cluster.plan("shop/web").1.len(), 1);
        cluster.apply(&younger.replace(
            "namespace: shop",
            "namespace: shop, creationTimestamp: '2025-12-01T00:00:00Z'",
        ));
    }
    let reason = "load balancer IP 198.51.100.1:80/TCP already belongs to Service shop/web, which is older (or comes first by name). This one does not get it: remove it from one of the two";
    let planned = cluster.gateway_plan(PLAN);
    assert_eq!(
        planned.warnings[0].to_string(),
        format!("Gateway shop/edge: {reason}")
    );
    assert_eq!(frontends(&cluster.plan("shop/web").0.ports[0].v4).len(), 2);
    cluster.delete(crate::model::Kind::Service, "shop/web");
    assert_eq!(
        frontends(&ports(&cluster)[0].v4),
        ["balancer 198.51.100.1:80"]
    );
    cluster.delete(crate::model::Kind::Gateway, "shop/edge");
    let said = status(&mut cluster, "Gateway shop/young");
    assert_eq!(
        conditions(&said),
        ["Accepted=True Accepted", "Programmed=True Programmed"]
    );
}
