// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The status of each object, in tables.

use serde_json::json;

use super::*;
use crate::{
    model::{Kind, gateway::status::digest},
    testing::rows,
};

#[test]
fn a_route_and_its_gateway_are_accepted_resolved_and_programmed() {
    let mut cluster = cluster(&[
        edge(ADDRESS),
        to(CART).replace(EDGE, "{name: edge, sectionName: web, port: 80}"),
    ]);
    let (writes, warnings) = cluster.report();
    assert_eq!(warnings, [""; 0]);
    let of = |object: &str| written(&writes, object);
    let class = of("GatewayClass l4");
    assert_eq!(conditions(&class), "Accepted=True Accepted");
    let said = of("Gateway shop/edge");
    assert_eq!(conditions(&said), FINE);
    assert_eq!(said["conditions"][0]["observedGeneration"], 3);
    let address = json!([{"type": "IPAddress", "value": "198.51.100.1"}]);
    assert_eq!(said["addresses"], address);
    let listener = &said["listeners"][0];
    let expected = "Accepted=True Accepted, Programmed=True Programmed, Conflicted=False NoConflicts, ResolvedRefs=True ResolvedRefs";
    assert_eq!(conditions(listener), expected);
    assert_eq!(listener["name"], "web");
    assert_eq!(listener["attachedRoutes"], 1);
    let kinds = json!([{"group": "gateway.networking.k8s.io", "kind": "TCPRoute"}]);
    assert_eq!(listener["supportedKinds"], kinds);
    let parent = &of("TCPRoute shop/cart")["parents"][0];
    let expected = "Accepted=True Accepted, ResolvedRefs=True ResolvedRefs";
    assert_eq!(conditions(parent), expected);
    assert_eq!(parent["controllerName"], "portolan.dev/l4");
    assert_eq!(parent["conditions"][0]["observedGeneration"], 5);
    let reference = json!({"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "edge", "sectionName": "web", "port": 80});
    assert_eq!(parent["parentRef"], reference);
}

/// Protocol and more of a listener, a route of its port 80, its parent, a backend beside another
/// one, and its conditions.
const ROUTES: &str = "
TCP | TCPRoute shop/cart | | | True Accepted
TCP | TCPRoute shop/cart | , sectionName: other | | False NoMatchingParent
TCP | TCPRoute shop/cart | , port: 81 | | False NoMatchingParent
UDP | TCPRoute shop/cart | | | False NotAllowedByListeners
HTTP | TCPRoute shop/cart | | | False NotAllowedByListeners
TCP, allowedRoutes: {kinds: [{kind: UDPRoute}]} | TCPRoute shop/cart | | | False NotAllowedByListeners
TCP, allowedRoutes: {kinds: [{kind: TCPRoute}]} | TCPRoute shop/cart | | | True Accepted
TCP | TCPRoute till/cart | , namespace: shop | | False NotAllowedByListeners
TCP, allowedRoutes: {namespaces: {from: Selector, selector: {matchLabels: {team: till}}}}
  | TCPRoute till/cart | , namespace: shop | | True Accepted
TCP, allowedRoutes: {namespaces: {from: Selector, selector: {matchLabels: {team: till}}}}
  | TCPRoute shop/cart | | | False NotAllowedByListeners
TCP, allowedRoutes: {namespaces: {from: All}}
  | TCPRoute till/cart | , namespace: shop | | True Accepted
TCP, allowedRoutes: {namespaces: {from: None}}
  | TCPRoute shop/cart | | | False NotAllowedByListeners
TCP | TCPRoute shop/cart | | name: none, port: 80 | True Accepted, ResolvedRefs=False BackendNotFound
TCP | TCPRoute shop/cart | | name: cart, port: 81 | True Accepted, ResolvedRefs=False BackendNotFound
TCP | TCPRoute shop/cart | | name: cart | True Accepted, ResolvedRefs=False BackendNotFound
TCP | TCPRoute shop/cart | | name: cart, kind: Bucket, group: a.b, port: 80
  | True Accepted, ResolvedRefs=False InvalidKind
TCP | TCPRoute shop/cart | | name: cart, namespace: till, port: 80
  | True Accepted, ResolvedRefs=False RefNotPermitted
UDP | UDPRoute shop/cart | | name: cart, port: 80
  | True Accepted, ResolvedRefs=False UnsupportedProtocol
";

#[test]
fn a_route_is_accepted_by_listeners_that_allow_it_whether_its_backends_are_resolved_or_not() {
    for [listener, object, parent, backend, expected] in rows(ROUTES) {
        let listener = format!("{{name: web, port: 80, protocol: {listener}}}");
        let (kind, name) = object.split_once(' ').expect("kind and name");
        let backends = match &*backend {
            "" => CART.to_owned(),
            backend => format!("{CART}, {{{backend}}}"),
        };
        let mut cluster = cluster(&[
            gateway("edge", ADDRESS, &listener),
            route(kind, name, &format!("{{name: edge{parent}}}"), &backends),
        ]);
        let (writes, warnings) = cluster.report();
        let conditions = conditions(&written(&writes, &object)["parents"][0]) + ", ";
        let begins = format!("Accepted={expected}, ");
        assert!(conditions.starts_with(&begins), "{object}: {conditions}");
        let is_warned = warnings.iter().any(|one| one.starts_with(&object));
        assert!(is_warned || expected == "True Accepted", "{warnings:?}");
    }
}

#[test]
fn a_grant_permits_a_reference_until_it_is_deleted() {
    let mut cluster = cluster(&[gateway("edge", ADDRESS, FROM_ALL), of_till()]);
    let resolves = |cluster: &mut Cluster, expected: &str| {
        let said = status(cluster, "TCPRoute till/cart");
        let found = conditions(&said["parents"][0]);
        assert!(found.ends_with(expected), "{said}");
    };
    resolves(&mut cluster, "ResolvedRefs=False RefNotPermitted");
    assert_eq!(cluster.apply(GRANT), ["shop/gateway:edge"]);
    resolves(&mut cluster, "ResolvedRefs=True ResolvedRefs");
    let dirty = cluster.delete(Kind::ReferenceGrant, "shop/g");
    assert_eq!(dirty, ["shop/gateway:edge"]);
    resolves(&mut cluster, "ResolvedRefs=False RefNotPermitted");
}

/// More of a Gateway, its listeners, its conditions, and that of its first listener.
const FAULTS: &str = "
A | {name: a, protocol: HTTP, port: 80}
  | True ListenersNotValid | True Programmed | False UnsupportedProtocol
A | {name: a, protocol: INVALID, port: 80}
  | False ListenersNotValid | False Invalid | False UnsupportedProtocol
A | {name: a, protocol: INVALID, port: 80}, {name: b, protocol: TCP, port: 81}
  | True ListenersNotValid | True Programmed | False UnsupportedProtocol
A | {name: a, protocol: TCP, port: 80}, {name: b, protocol: HTTP, port: 80}, {name: c, protocol: TCP, port: 81}
  | True ListenersNotValid | True Programmed | False ProtocolConflict
A | {name: a, protocol: HTTPS, port: 443, hostname: a.b}, {name: b, protocol: HTTPS, port: 443, hostname: b.b}
  | True ListenersNotValid | True Programmed | False UnsupportedProtocol
none | TCP | True Accepted | False AddressNotAssigned | True Accepted
, addresses: [{type: Hostname, value: a.example}] | TCP
  | False UnsupportedAddress | False Invalid | True Accepted
, addresses: [{value: 127.0.0.1}] | TCP | True Accepted | False AddressNotUsable | True Accepted
, addresses: [{value: nonsense}] | TCP | True Accepted | False AddressNotUsable | True Accepted
, infrastructure: {parametersRef: {group: a, kind: b, name: c}} | TCP
  | False InvalidParameters | False Invalid | True Accepted
";

#[test]
fn a_gateway_says_what_is_wrong_with_it() {
    for [rest, listeners, accepted, programmed, first] in rows(FAULTS) {
        let rest = match &*rest {
            "A" => ADDRESS,
            "none" => "",
            rest => rest,
        };
        let listeners = if listeners == "TCP" { TCP } else { &listeners };
        let mut cluster = cluster(&[gateway("edge", rest, listeners)]);
        let said = status(&mut cluster, "Gateway shop/edge");
        let expected = format!("Accepted={accepted}, Programmed={programmed}");
        assert_eq!(conditions(&said), expected, "{rest} {listeners}");
        let listener = conditions(&said["listeners"][0]);
        let begins = format!("Accepted={first}, ");
        assert!(listener.starts_with(&begins), "{listeners}: {listener}");
    }
}

#[test]
fn kinds_of_routes_that_do_not_fit_are_left_out_of_the_supported_ones() {
    let listener = "{name: web, protocol: TCP, port: 80, allowedRoutes: {kinds: [{kind: HTTPRoute}, {kind: TCPRoute}]}}";
    let mut cluster = cluster(&[gateway("edge", ADDRESS, listener)]);
    let said = status(&mut cluster, "Gateway shop/edge");
    let listener = &said["listeners"][0];
    assert!(conditions(listener).ends_with("ResolvedRefs=False InvalidRouteKinds"));
    assert_eq!(listener["supportedKinds"].as_array().map(Vec::len), Some(1));
}

#[test]
fn what_is_not_ours_gets_no_status() {
    let parents = format!("{EDGE}, {{name: none}}, {{kind: Service, name: cart}}");
    let mut cluster = cluster(&[
        class("other", "controllerName: example.org/other"),
        edge(ADDRESS).replace("l4", "other"),
        route("TCPRoute", "shop/cart", &parents, CART),
    ]);
    let (writes, warnings) = cluster.report();
    assert_eq!(warnings, [""; 0]);
    let written: Vec<_> = writes.iter().filter(|(_, write)| write.is_some()).collect();
    assert_eq!(written.len(), 1, "{written:?}");
    assert_eq!(written[0].0, "GatewayClass l4");
}

#[test]
fn a_status_that_a_route_has_is_not_written_again_and_withdrawn_when_its_gateway_is_gone() {
    let objects = [edge(ADDRESS), to(CART)];
    let mut cluster = cluster(&objects);
    let said = status(&mut cluster, "TCPRoute shop/cart");
    // Others' entries and times do not matter.
    let mut parent = said["parents"][0].clone();
    parent["conditions"][0]["lastTransitionTime"] = json!("2026-01-01T00:00:00Z");
    let other = json!({"controllerName": "example.org/other", "parentRef": {"name": "x"}});
    let has = json!({"parents": [other, parent]});
    assert_eq!(digest(Kind::TcpRoute, &has), digest(Kind::TcpRoute, &said));
    cluster.apply(&objects[1].replace("\n---", &format!("\nstatus: {has}\n---")));
    assert_eq!(about(&mut cluster, "TCPRoute shop/cart"), Some(None));
    cluster.delete(Kind::Gateway, "shop/edge");
    let said = status(&mut cluster, "TCPRoute shop/cart");
    assert_eq!(said, json!({"parents": []}));
}

#[test]
fn parts_that_cannot_be_read_are_warnings_and_the_rest_goes_on() {
    let listeners = "{name: web, protocol: TCP, port: 80}, {name: bad, protocol: TCP, port: 70000}, {name: worse, protocol: [TCP], port: 81}";
    let yaml = gateway("edge", ADDRESS, listeners);
    let warnings = crate::testing::complaints(&yaml);
    let places = ["[1]: port 70000 is not", "[2].protocol"];
    for (warning, place) in warnings.iter().zip(places) {
        let begins = format!("Gateway shop/edge: spec.listeners{place}");
        assert!(warning.starts_with(&begins), "{warnings:?}");
    }
    assert!(warnings.len() >= places.len(), "{warnings:?}");
    let said = status(&mut cluster(&[yaml]), "Gateway shop/edge");
    assert_eq!(said["listeners"].as_array().map(Vec::len), Some(1));
}
