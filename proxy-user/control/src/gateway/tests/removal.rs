// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Deletion in every order leaves nothing, and the Service that is made for a Gateway.

use super::*;
use crate::model::Kind;

#[test]
fn deletion_in_every_order_leaves_nothing() {
    let grant = "apiVersion: gateway.networking.k8s.io/v1\nkind: ReferenceGrant\nmetadata: {name: g, namespace: shop}\nspec: {from: [{group: gateway.networking.k8s.io, kind: TCPRoute, namespace: till}], to: [{group: '', kind: Service}]}\n---\n";
    let listener = "{name: web, protocol: TCP, port: 80, allowedRoutes: {namespaces: {from: All}}}";
    let all = [
        (Kind::GatewayClass, "/l4"),
        (Kind::Gateway, "shop/edge"),
        (Kind::TcpRoute, "till/cart"),
        (Kind::ReferenceGrant, "shop/g"),
        (Kind::Service, "shop/cart"),
        (Kind::EndpointSlice, "shop/cart-1"),
    ];
    let mut orders = vec![Vec::new()];
    for one in 0..all.len() {
        let longer = |order: &Vec<usize>| {
            (0..=order.len())
                .map(|at| {
                    let mut order = order.clone();
                    order.insert(at, one);
                    order
                })
                .collect::<Vec<_>>()
        };
        orders = orders.iter().flat_map(longer).collect();
    }
    assert_eq!(orders.len(), 720);
    for order in orders {
        let mut cluster = cluster(&[
            grant.to_owned(),
            gateway("edge", ADDRESS, listener),
            route(
                "TCPRoute",
                "till/cart",
                EDGE_OF_SHOP,
                "{name: cart, namespace: shop, port: 80}",
            ),
        ]);
        cluster.report();
        for at in &order {
            let (kind, name) = all[*at];
            cluster.delete(kind, name);
            cluster.report();
        }
        let served: Vec<_> = cluster.state.served().into_iter().collect();
        assert_eq!(served, [crate::testing::name("shop/till")], "{order:?}");
        assert!(
            cluster
                .state
                .gateway(&crate::testing::name("shop/gateway:edge"))
                .is_none()
        );
        let claims = cluster.claims.claimants();
        assert_eq!(claims, 1, "{order:?}");
    }
}

fn about(cluster: &mut Cluster, object: &str) -> Option<Write> {
    let (writes, _) = cluster.report();
    writes.into_iter().find(|(name, _)| name == object)?.1
}

#[test]
fn a_gateway_without_addresses_gets_a_service() {
    let name = "Service shop/gateway-edge";
    let mut cluster = cluster(&[gateway("edge", ", infrastructure: {labels: {a: b}}", TCP)]);
    let Some(Write::Apply(made)) = about(&mut cluster, name) else {
        panic!("no Service")
    };
    assert_eq!(made["spec"]["type"], "LoadBalancer");
    assert_eq!(made["spec"]["ports"][0]["port"], 80);
    assert_eq!(made["metadata"]["labels"]["a"], "b");
    assert_eq!(made["metadata"]["ownerReferences"][0]["uid"], "uid-edge");
    // With addresses of its own it wants none.
    let mut object = made.clone();
    object["spec"]["clusterIP"] = "10.96.0.50".into();
    cluster.apply(&format!("{object}\n---\n"));
    cluster.apply(&gateway("edge", ADDRESS, TCP));
    assert_eq!(about(&mut cluster, name), Some(Write::Delete));
    cluster.delete(Kind::Service, "shop/gateway-edge");
    assert_eq!(about(&mut cluster, name), None);
}

/// An agent that starts, or a server that lists no Gateways: the garbage collector knows better.
#[test]
fn the_service_of_a_gateway_that_was_never_known_is_left_alone() {
    let [name, slice] = [
        "Service shop/gateway-edge",
        "EndpointSlice shop/gateway-edge-x",
    ];
    let mut known = cluster(&[gateway("edge", "", TCP)]);
    let Some(Write::Apply(mut made)) = about(&mut known, name) else {
        panic!("no Service")
    };
    made["spec"]["clusterIP"] = "10.96.0.50".into();
    let slice_of = serde_json::json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "endpoints": [],
        "metadata": {
            "name": "gateway-edge-x", "namespace": "shop", "annotations": {"portolan.dev/applied": "x"},
            "labels": {"portolan.dev/gateway": "gateway-edge", "kubernetes.io/service-name": "gateway-edge"},
            "ownerReferences": made["metadata"]["ownerReferences"],
        },
    });
    let mut cluster = cluster(&[format!("{made}\n---\n{slice_of}\n---\n")]);
    assert_eq!(about(&mut cluster, name), None);
    assert_eq!(about(&mut cluster, slice), None);
    // Once it is known, its end is the end of both.
    cluster.apply(&gateway("edge", "", TCP));
    cluster.report();
    cluster.delete(Kind::Gateway, "shop/edge");
    assert_eq!(about(&mut cluster, name), Some(Write::Delete));
    cluster.delete(Kind::Service, "shop/gateway-edge");
    assert_eq!(about(&mut cluster, slice), Some(Write::Delete));
}

#[test]
fn a_service_of_users_with_that_name_is_left_alone() {
    let mut cluster = cluster(&[
        service("gateway-edge", "10.96.0.50", ""),
        gateway("edge", "", TCP),
    ]);
    let (writes, warnings) = cluster.report();
    let made = writes
        .iter()
        .find(|(name, _)| name == "Service shop/gateway-edge");
    assert_eq!(made, Some(&("Service shop/gateway-edge".to_owned(), None)));
    assert!(
        warnings[0].contains("wants a Service of this name"),
        "{warnings:?}"
    );
}
