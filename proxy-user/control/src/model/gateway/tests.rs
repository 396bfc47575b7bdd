// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Objects of any form are read without a panic.

use proptest::prelude::*;

use crate::{
    documents,
    model::Converter,
    testing::{NODE, damaged},
};

const OBJECTS: &str = "apiVersion: gateway.networking.k8s.io/v1
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

proptest! {
    #[test]
    fn damaged_objects_are_read_or_refused(edits in prop::collection::vec(any::<(u16, u8, u8)>(), 0..6)) {
        let mut converter = Converter::new(NODE).with_gateways(true);
        _ = documents::read("test.yaml", &damaged(OBJECTS, &edits), &mut converter);
    }
}
