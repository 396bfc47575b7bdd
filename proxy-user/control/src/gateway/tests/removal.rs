// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Deletion in every order leaves nothing, and the Service that is made for a Gateway.

use super::*;
use crate::model::Kind;

#[test]
fn deletion_in_every_order_leaves_nothing() {
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
        let longer = orders.iter().flat_map(|order: &Vec<usize>| {
            (0..=order.len()).map(move |at| [&order[..at], &[one], &order[at..]].concat())
        });
        orders = longer.collect();
    }
    assert_eq!(orders.len(), 720);
    for order in orders {
        let edge = gateway("edge", ADDRESS, FROM_ALL);
        let mut cluster = cluster(&[GRANT.to_owned(), edge, of_till()]);
        cluster.report();
        for at in &order {
            let (kind, name) = all[*at];
            cluster.delete(kind, name);
            cluster.report();
        }
        let served: Vec<_> = cluster.state.served().into_iter().collect();
        assert_eq!(served, [crate::testing::name("shop/till")], "{order:?}");
        let plan = crate::testing::name("shop/gateway:edge");
        assert!(cluster.state.gateway(&plan).is_none());
        assert_eq!(cluster.claims.by_service.len(), 1, "{order:?}");
    }
}

#[test]
fn a_gateway_without_addresses_gets_a_service() {
    let mut cluster = cluster(&[edge(", infrastructure: {labels: {a: b}}")]);
    let made = written(&cluster.report().0, SERVICE);
    assert_eq!(made["spec"]["type"], "LoadBalancer");
    assert_eq!(made["spec"]["ports"][0]["port"], 80);
    assert_eq!(made["metadata"]["labels"]["a"], "b");
    assert_eq!(made["metadata"]["ownerReferences"][0]["uid"], "uid-edge");
    // What others add to it stays, and what they change is corrected.
    let more = r#""externalTrafficPolicy":"Local","type""#;
    for (from, to, is_corrected) in [
        (r#""type""#, more, false),
        ("LoadBalancer", "ClusterIP", true),
        (r#""b""#, r#""c""#, true),
    ] {
        let changed = made.to_string().replace(from, to);
        cluster.apply(&format!("{changed}\n---\n"));
        let write = about(&mut cluster, SERVICE).flatten();
        assert_eq!(write.is_some(), is_corrected, "{changed}");
    }
    // With addresses of its own it wants none.
    cluster.apply(MADE);
    cluster.apply(&edge(ADDRESS));
    assert_eq!(about(&mut cluster, SERVICE), Some(Some(Write::Delete)));
    cluster.delete(Kind::Service, "shop/gateway-edge");
    assert_eq!(about(&mut cluster, SERVICE).flatten(), None);
}

/// At the start, or where the server lists no Gateways: the garbage collector knows better.
#[test]
fn what_was_made_for_a_gateway_that_is_not_known_is_left_alone() {
    let mut cluster = cluster(&[MADE.to_owned(), made_slice("gateway-edge-x", &[])]);
    let mut writes = cluster.report().0.into_iter();
    assert!(writes.all(|(_, write)| write != Some(Write::Delete)));
}
