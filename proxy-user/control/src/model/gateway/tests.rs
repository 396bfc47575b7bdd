// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How objects are read.

use super::{From, Labels};
use crate::{
    model::Object,
    testing::{objects, rows},
};

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

/// What stands in place of a listener's selector, whether it matches, and the warning.
const SELECTORS: &str = "
, selector: {matchLabels: {team: shop}} | true |
, selector: {matchLabels: {team: till}} | false |
, selector: {matchLabels: {other: ''}} | false |
, selector: {matchExpressions: [{key: team, operator: In, values: [a, shop]}]} | true |
, selector: {matchExpressions: [{key: team, operator: NotIn, values: [shop]}]} | false |
, selector: {matchExpressions: [{key: other, operator: NotIn, values: [shop]}]} | true |
, selector: {matchExpressions: [{key: team, operator: Exists}]} | true |
, selector: {matchExpressions: [{key: team, operator: DoesNotExist}]} | false |
, selector: {matchExpressions: [{key: other, operator: NotIn}]} | false |
| false | is missing
, selector: {} | true |
, selector: {matchLables: {team: till}} | false | unknown field `matchLables`
, selector: {matchExpressions: [{key: team, operator: Sometimes}]} | false
  | unknown variant `Sometimes`
, selector: {matchExpressions: [{kay: team, operator: NotIn}]} | false | unknown field `kay`
";

#[test]
fn a_selector_matches_as_kubernetes_says_and_nothing_if_it_is_missing_or_misspelled() {
    let labels = Labels::from([("team".into(), "shop".into())]);
    let given = ", selector: {matchExpressions: [{key: a, operator: In, values: [b]}]}";
    for [selector, matches, complaint] in rows(SELECTORS) {
        let (objects, warnings) = objects(&OBJECTS.replace(given, &selector));
        let Object::Gateway(gateway) = &objects[0] else {
            panic!("{objects:?}")
        };
        let from = &gateway.listeners[0].from;
        let found = matches!(from, From::Matching(selector) if selector.matches(&labels));
        assert_eq!(found.to_string(), matches, "{selector}");
        let is_wrong = !complaint.is_empty();
        assert_eq!(warnings.len(), usize::from(is_wrong), "{warnings:?}");
        for warning in warnings.iter().map(ToString::to_string) {
            let begins = "Gateway shop/edge: spec.listeners[0].allowedRoutes.namespaces.selector";
            let is_said = warning.starts_with(begins) && warning.contains(&complaint);
            assert!(is_said, "{warning}");
        }
    }
}
