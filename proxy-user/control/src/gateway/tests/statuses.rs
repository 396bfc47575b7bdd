// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The status of each object, in tables.

use rstest::rstest;
use serde_json::json;

use super::*;
use crate::model::{Kind, gateway::status::digest};

#[test]
fn a_route_and_its_gateway_are_accepted_resolved_and_programmed() {
    let mut cluster = cluster(&[
        gateway("edge", ADDRESS, TCP),
        route(
            "TCPRoute",
            "shop/cart",
            "{name: edge, sectionName: web, port: 80}",
            CART,
        ),
    ]);
    let (writes, warnings) = cluster.report();
    assert_eq!(warnings, [""; 0]);
    let of = |object: &str| {
        let found = writes.iter().find(|(name, _)| name == object);
        match found.and_then(|(_, write)| write.clone()) {
            Some(Write::Status(status)) => status,
            other => panic!("{object}: {other:?}"),
        }
    };
    assert_eq!(
        conditions(&of("GatewayClass l4")),
        ["Accepted=True Accepted"]
    );
    let said = of("Gateway shop/edge");
    assert_eq!(
        conditions(&said),
        ["Accepted=True Accepted", "Programmed=True Programmed"]
    );
    assert_eq!(said["conditions"][0]["observedGeneration"], 3);
    assert_eq!(
        said["addresses"],
        json!([{"type": "IPAddress", "value": "198.51.100.1"}])
    );
    let listener = &said["listeners"][0];
    assert_eq!(
        conditions(listener),
        [
            "Accepted=True Accepted",
            "Programmed=True Programmed",
            "Conflicted=False NoConflicts",
            "ResolvedRefs=True ResolvedRefs",
        ]
    );
    assert_eq!(
        (
            &listener["name"],
            &listener["attachedRoutes"],
            &listener["supportedKinds"]
        ),
        (
            &json!("web"),
            &json!(1),
            &json!([{"group": "gateway.networking.k8s.io", "kind": "TCPRoute"}])
        )
    );
    let parent = &of("TCPRoute shop/cart")["parents"][0];
    assert_eq!(
        conditions(parent),
        ["Accepted=True Accepted", "ResolvedRefs=True ResolvedRefs"]
    );
    assert_eq!(parent["controllerName"], "portolan.dev/l4");
    assert_eq!(parent["conditions"][0]["observedGeneration"], 5);
    assert_eq!(
        parent["parentRef"],
        json!({"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "edge", "sectionName": "web", "port": 80})
    );
}

const FROM_TILL: &str = "{name: web, protocol: TCP, port: 80, allowedRoutes: {namespaces: {from: Selector, selector: {matchLabels: {team: till}}}}}";
const FROM_ALL: &str =
    "{name: web, protocol: TCP, port: 80, allowedRoutes: {namespaces: {from: All}}}";
const FROM_NONE: &str =
    "{name: web, protocol: TCP, port: 80, allowedRoutes: {namespaces: {from: None}}}";

#[rstest]
#[case(TCP, "shop/cart", EDGE, "Accepted=True Accepted")]
#[case(
    TCP,
    "shop/cart",
    "{name: edge, sectionName: other}",
    "Accepted=False NoMatchingParent"
)]
#[case(
    TCP,
    "shop/cart",
    "{name: edge, port: 81}",
    "Accepted=False NoMatchingParent"
)]
#[case(
    "{name: web, protocol: UDP, port: 80}",
    "shop/cart",
    EDGE,
    "Accepted=False NotAllowedByListeners"
)]
#[case(
    "{name: web, protocol: HTTP, port: 80}",
    "shop/cart",
    EDGE,
    "Accepted=False NotAllowedByListeners"
)]
#[case(
    "{name: web, protocol: TCP, port: 80, allowedRoutes: {kinds: [{kind: UDPRoute}]}}",
    "shop/cart",
    EDGE,
    "Accepted=False NotAllowedByListeners"
)]
#[case(
    "{name: web, protocol: TCP, port: 80, allowedRoutes: {kinds: [{kind: TCPRoute}]}}",
    "shop/cart",
    EDGE,
    "Accepted=True Accepted"
)]
#[case(TCP, "till/cart", EDGE_OF_SHOP, "Accepted=False NotAllowedByListeners")]
#[case(FROM_TILL, "till/cart", EDGE_OF_SHOP, "Accepted=True Accepted")]
#[case(FROM_TILL, "shop/cart", EDGE, "Accepted=False NotAllowedByListeners")]
#[case(FROM_ALL, "till/cart", EDGE_OF_SHOP, "Accepted=True Accepted")]
#[case(FROM_NONE, "shop/cart", EDGE, "Accepted=False NotAllowedByListeners")]
fn a_route_is_accepted_by_the_listeners_that_allow_it(
    #[case] listeners: &str,
    #[case] name: &str,
    #[case] parent: &str,
    #[case] expected: &str,
) {
    let mut cluster = cluster(&[
        gateway("edge", ADDRESS, listeners),
        route("TCPRoute", name, parent, CART),
    ]);
    let (_, warnings) = cluster.report();
    let warned = warnings
        .iter()
        .any(|warning| warning.starts_with(&format!("TCPRoute {name}")));
    let mut cluster = self::cluster(&[
        gateway("edge", ADDRESS, listeners),
        route("TCPRoute", name, parent, CART),
    ]);
    let said = status(&mut cluster, &format!("TCPRoute {name}"));
    assert_eq!(conditions(&said["parents"][0])[0], expected);
    assert!(
        warned || expected.ends_with("Accepted=True Accepted"),
        "{warnings:?}"
    );
}

#[rstest]
#[case("{name: none, port: 80}", "BackendNotFound")]
#[case("{name: cart, port: 81}", "BackendNotFound")]
#[case("{name: cart}", "BackendNotFound")]
#[case(
    "{name: cart, kind: Bucket, group: example.org, port: 80}",
    "InvalidKind"
)]
#[case("{name: cart, namespace: till, port: 80}", "RefNotPermitted")]
fn an_unresolved_backend_is_said_and_the_route_stays_accepted(
    #[case] backend: &str,
    #[case] reason: &str,
) {
    let mut cluster = cluster(&[
        gateway("edge", ADDRESS, TCP),
        route("TCPRoute", "shop/cart", EDGE, &format!("{CART}, {backend}")),
    ]);
    let said = status(&mut cluster, "TCPRoute shop/cart");
    assert_eq!(
        conditions(&said["parents"][0]),
        [
            "Accepted=True Accepted".to_owned(),
            format!("ResolvedRefs=False {reason}")
        ]
    );
}

#[test]
fn a_udp_route_to_a_tcp_port_has_an_unsupported_protocol() {
    let mut cluster = cluster(&[
        gateway("edge", ADDRESS, "{name: dns, protocol: UDP, port: 53}"),
        route("UDPRoute", "shop/cart", EDGE, CART),
    ]);
    let said = status(&mut cluster, "UDPRoute shop/cart");
    assert_eq!(
        conditions(&said["parents"][0])[1],
        "ResolvedRefs=False UnsupportedProtocol"
    );
}

#[test]
fn a_grant_permits_a_reference_until_it_is_deleted() {
    let grant = "apiVersion: gateway.networking.k8s.io/v1\nkind: ReferenceGrant\nmetadata: {name: g, namespace: shop}\nspec: {from: [{group: gateway.networking.k8s.io, kind: TCPRoute, namespace: till}], to: [{group: '', kind: Service, name: cart}]}\n---\n";
    let mut cluster = cluster(&[
        gateway("edge", ADDRESS, FROM_ALL),
        route(
            "TCPRoute",
            "till/cart",
            EDGE_OF_SHOP,
            "{name: cart, namespace: shop, port: 80}",
        ),
    ]);
    let resolved = |cluster: &mut Cluster| {
        let said = status(cluster, "TCPRoute till/cart");
        conditions(&said["parents"][0])[1].clone()
    };
    assert_eq!(resolved(&mut cluster), "ResolvedRefs=False RefNotPermitted");
    assert_eq!(cluster.apply(grant), ["shop/gateway:edge"]);
    assert_eq!(resolved(&mut cluster), "ResolvedRefs=True ResolvedRefs");
    let dirty = cluster.delete(Kind::ReferenceGrant, "shop/g");
    assert_eq!(dirty, ["shop/gateway:edge"]);
    assert_eq!(resolved(&mut cluster), "ResolvedRefs=False RefNotPermitted");
}

#[rstest]
#[case(ADDRESS, "{name: a, protocol: HTTP, port: 80}", &["Accepted=True ListenersNotValid", "Programmed=True Programmed"], "Accepted=False UnsupportedProtocol")]
#[case(ADDRESS, "{name: a, protocol: INVALID, port: 80}", &["Accepted=False ListenersNotValid", "Programmed=False Invalid"], "Accepted=False UnsupportedProtocol")]
#[case(ADDRESS, "{name: a, protocol: INVALID, port: 80}, {name: b, protocol: TCP, port: 81}", &["Accepted=True ListenersNotValid", "Programmed=True Programmed"], "Accepted=False UnsupportedProtocol")]
#[case(ADDRESS, "{name: a, protocol: TCP, port: 80}, {name: b, protocol: HTTP, port: 80}, {name: c, protocol: TCP, port: 81}", &["Accepted=True ListenersNotValid", "Programmed=True Programmed"], "Accepted=False ProtocolConflict")]
#[case(ADDRESS, "{name: a, protocol: HTTPS, port: 443, hostname: a.example}, {name: b, protocol: HTTPS, port: 443, hostname: b.example}", &["Accepted=True ListenersNotValid", "Programmed=True Programmed"], "Accepted=False UnsupportedProtocol")]
#[case("", TCP, &["Accepted=True Accepted", "Programmed=False AddressNotAssigned"], "Accepted=True Accepted")]
#[case(", addresses: [{type: Hostname, value: a.example}]", TCP, &["Accepted=False UnsupportedAddress", "Programmed=False Invalid"], "Accepted=True Accepted")]
#[case(", addresses: [{value: 127.0.0.1}]", TCP, &["Accepted=True Accepted", "Programmed=False AddressNotUsable"], "Accepted=True Accepted")]
#[case(", addresses: [{value: nonsense}]", TCP, &["Accepted=True Accepted", "Programmed=False AddressNotUsable"], "Accepted=True Accepted")]
#[case(", infrastructure: {parametersRef: {group: a, kind: b, name: c}}", TCP, &["Accepted=False InvalidParameters", "Programmed=False Invalid"], "Accepted=True Accepted")]
fn a_gateway_says_what_is_wrong_with_it(
    #[case] rest: &str,
    #[case] listeners: &str,
    #[case] expected: &[&str],
    #[case] first: &str,
) {
    let mut cluster = cluster(&[gateway("edge", rest, listeners)]);
    let said = status(&mut cluster, "Gateway shop/edge");
    assert_eq!(conditions(&said), expected);
    assert_eq!(conditions(&said["listeners"][0])[0], first);
}

#[test]
fn kinds_of_routes_that_do_not_fit_are_left_out_of_the_supported_ones() {
    let listener = "{name: web, protocol: TCP, port: 80, allowedRoutes: {kinds: [{kind: HTTPRoute}, {kind: TCPRoute}]}}";
    let mut cluster = cluster(&[gateway("edge", ADDRESS, listener)]);
    let said = status(&mut cluster, "Gateway shop/edge");
    let listener = &said["listeners"][0];
    assert_eq!(
        conditions(listener)[3],
        "ResolvedRefs=False InvalidRouteKinds"
    );
    assert_eq!(
        listener["supportedKinds"].as_array().expect("a list").len(),
        1
    );
}

#[test]
fn what_is_not_ours_gets_no_status() {
    let foreign = "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: other}\nspec: {controllerName: example.org/other}\n---\n";
    let mut cluster = cluster(&[
        foreign.to_owned(),
        gateway("edge", ADDRESS, TCP).replace("l4", "other"),
        route(
            "TCPRoute",
            "shop/cart",
            &format!("{EDGE}, {{name: none}}, {{kind: Service, name: cart}}"),
            CART,
        ),
    ]);
    let (writes, warnings) = cluster.report();
    assert_eq!(warnings, [""; 0]);
    let written: Vec<_> = writes.iter().filter(|(_, write)| write.is_some()).collect();
    assert_eq!(written.len(), 1, "{written:?}");
    assert_eq!(written[0].0, "GatewayClass l4");
}

#[test]
fn a_status_that_an_object_has_already_is_not_written_again() {
    let objects = [
        gateway("edge", ADDRESS, TCP),
        route("TCPRoute", "shop/cart", EDGE, CART),
    ];
    let mut cluster = cluster(&objects);
    let said = status(&mut cluster, "TCPRoute shop/cart");
    // Others' entries and times do not matter.
    let mut parent = said["parents"][0].clone();
    parent["conditions"][0]["lastTransitionTime"] = json!("2026-01-01T00:00:00Z");
    let other = json!({"controllerName": "example.org/other", "parentRef": {"name": "x"}});
    let has = json!({"parents": [other, parent]});
    assert_eq!(digest(Kind::TcpRoute, &has), digest(Kind::TcpRoute, &said));
    cluster.apply(&objects[1].replace("\n---", &format!("\nstatus: {has}\n---")));
    let (writes, _) = cluster.report();
    let route = writes.iter().find(|(name, _)| name == "TCPRoute shop/cart");
    assert_eq!(route, Some(&("TCPRoute shop/cart".to_owned(), None)));
}

#[test]
fn when_a_gateway_is_gone_our_entry_of_its_routes_is_withdrawn() {
    let objects = [
        gateway("edge", ADDRESS, TCP),
        route("TCPRoute", "shop/cart", EDGE, CART),
    ];
    let mut cluster = cluster(&objects);
    let said = status(&mut cluster, "TCPRoute shop/cart");
    cluster.apply(&objects[1].replace("\n---", &format!("\nstatus: {said}\n---")));
    cluster.delete(Kind::Gateway, "shop/edge");
    assert_eq!(
        status(&mut cluster, "TCPRoute shop/cart"),
        json!({"parents": []})
    );
}

#[test]
fn parts_that_cannot_be_read_are_warnings_and_the_rest_goes_on() {
    let listeners = "{name: web, protocol: TCP, port: 80}, {name: bad, protocol: TCP, port: 70000}, {name: worse, protocol: [TCP], port: 81}";
    let yaml = gateway("edge", ADDRESS, listeners);
    let (_, warnings) = crate::testing::objects(&yaml);
    let warnings: Vec<_> = warnings.iter().map(ToString::to_string).collect();
    assert!(
        warnings[0].starts_with("Gateway shop/edge: spec.listeners[1]: port 70000 is not"),
        "{warnings:?}"
    );
    assert!(
        warnings[1].starts_with("Gateway shop/edge: spec.listeners[2].protocol"),
        "{warnings:?}"
    );
    let mut cluster = cluster(&[yaml]);
    assert_eq!(
        status(&mut cluster, "Gateway shop/edge")["listeners"]
            .as_array()
            .map(Vec::len),
        Some(1)
    );
}
