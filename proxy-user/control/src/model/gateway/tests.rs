// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How objects are read.

use rstest::rstest;

use super::{From, Labels};
use crate::{model::Object, testing::objects};

pub(crate) const OBJECTS: &str = "apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop, generation: 3}
spec:
  gatewayClassName: l4
  addresses: [{type: IPAddress, value: 198.51.100.1}]
  listeners:
  - name: web
    port: 80
    protocol: TCP
    allowedRoutes:
      kinds: [{kind: TCPRoute}]
      namespaces: {from: Selector, selector: {matchExpressions: [{key: a, operator: In, values: [b]}]}}
status: {conditions: [{type: Accepted, status: 'True'}], listeners: [{name: web, attachedRoutes: 1}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: TCPRoute
metadata: {name: web, namespace: shop}
spec:
  parentRefs: [{name: edge, sectionName: web, port: 80}]
  rules: [{backendRefs: [{name: cart, port: 80, weight: 3}, {name: till, namespace: till, port: 80}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: ReferenceGrant
metadata: {name: g, namespace: till}
spec: {from: [{group: gateway.networking.k8s.io, kind: TCPRoute, namespace: shop}], to: [{group: '', kind: Service}]}
";

#[test]
fn earlier_versions_are_read_as_the_present_one() {
    let written = OBJECTS
        .replace("v1\nkind: Gateway", "v1beta1\nkind: Gateway")
        .replace("v1\nkind: TCPRoute", "v1alpha2\nkind: TCPRoute")
        .replace("v1\nkind: ReferenceGrant", "v1beta1\nkind: ReferenceGrant");
    assert_eq!(objects(&written), objects(OBJECTS));
}

#[rstest]
#[case("", false, "is missing")]
#[case(", selector: {}", true, "")]
#[case(
    ", selector: {matchLables: {team: till}}",
    false,
    "unknown field `matchLables`"
)]
#[case(
    ", selector: {matchExpressions: [{key: team, operator: Sometimes}]}",
    false,
    "unknown variant `Sometimes`"
)]
#[case(
    ", selector: {matchExpressions: [{kay: team, operator: NotIn}]}",
    false,
    "unknown field `kay`"
)]
fn a_selector_that_is_missing_or_misspelled_selects_no_namespace(
    #[case] selector: &str,
    #[case] matches: bool,
    #[case] complaint: &str,
) {
    let whole = "selector: {matchExpressions: [{key: a, operator: In, values: [b]}]}";
    let (objects, warnings) = objects(&OBJECTS.replace(&format!(", {whole}"), selector));
    let Object::Gateway(gateway) = &objects[0] else {
        panic!("{objects:?}")
    };
    let labels = Labels::from([("team".into(), "shop".into())]);
    let from = &gateway.listeners[0].from;
    let found = matches!(from, From::Matching(selector) if selector.matches(&labels));
    assert_eq!(
        (found, warnings.len()),
        (matches, usize::from(!matches)),
        "{warnings:?}"
    );
    let field = "spec.listeners[0].allowedRoutes.namespaces.selector";
    for warning in warnings {
        assert_eq!(warning.object, "Gateway shop/edge");
        let reason = warning.reason;
        assert!(
            reason.contains(field) && reason.contains(complaint),
            "{reason}"
        );
    }
}
