// SPDX-License-Identifier: Apache-2.0 OR MIT

use datapath::read::AffineEndpoint;
use proxy_common::Settings;

use super::*;
use crate::explain::reasons::{self, tests::WANTED};

fn serving(last: u8, slots: u32, [cluster, local]: [bool; 2]) -> ServingEndpoint {
    ServingEndpoint {
        address: format!("10.40.1.{last}:8080").parse().expect("an address"),
        slots,
        cluster,
        local,
    }
}

/// The objects with one slice for each of these lists of endpoints.
fn objects(slices: &[&str]) -> ServiceObjects {
    let slices = slices.iter().enumerate().map(|(number, endpoints)| {
        format!(
            "---
kind: EndpointSlice
metadata: {{name: cart-{number}, namespace: shop, labels: {{kubernetes.io/service-name: cart}}}}
addressType: IPv4
ports: [{{name: http, port: 8080}}]
endpoints: [{endpoints}]
"
        )
    });
    reasons::tests::objects(&slices.collect::<String>())
}

/// An endpoint of a slice, with more fields.
fn endpoint(last: u8, more: &str) -> String {
    format!("{{addresses: [10.40.1.{last}], targetRef: {{kind: Pod, name: cart-{last}}}{more}}}")
}

fn explained(endpoints: Vec<ServingEndpoint>) -> Explained {
    let mut explained = Explained::unmatched(Settings::EMPTY, Counter::ForwardedNew, None);
    explained.endpoints = endpoints;
    explained
}

fn said(explained: &Explained, objects: &ServiceObjects) -> Vec<String> {
    let rows = rows(explained, Some((objects, WANTED))).into_iter();
    rows.map(|row| row.because).collect()
}

#[test]
fn endpoints_that_are_not_chosen_are_listed_with_the_reason() {
    let mut one = explained(vec![
        serving(1, 1, [true, true]),
        serving(2, 0, [true, false]),
        serving(3, 0, [false, false]),
    ]);
    let EndpointRow {
        because, remedy, ..
    } = &rows(&one, None)[2];
    assert!(because.starts_with("not in use: it is not ready, terminates"));
    assert!(remedy.starts_with("--kubeconfig or --manifests asks"));
    for (more, expected) in [
        (
            ", hints: {forZones: [{name: west}]}",
            "hinted for zone west, not for this node",
        ),
        (
            ", conditions: {ready: false, terminating: true}",
            "terminating, while others are ready",
        ),
        (", conditions: {ready: false}", "not ready"),
        (
            "",
            "ready by Kubernetes, and not in use by the maps: they are older or newer",
        ),
    ] {
        let all = [endpoint(1, ""), endpoint(2, ""), endpoint(3, more)].join(", ");
        assert_eq!(said(&one, &objects(&[&all]))[2], expected);
    }
    one.local_only = true;
    let elsewhere = objects(&[&endpoint(2, ", nodeName: node-b")]);
    assert_eq!(
        said(&one, &elsewhere)[1],
        "on another node (node-b), and the traffic policy is Local"
    );
    one.counter = Counter::DroppedSource;
    assert_eq!(
        said(&one, &elsewhere)[1],
        "the client is outside the source ranges"
    );
}

#[test]
fn with_affinity_all_other_endpoints_are_left_out() {
    let mut one = explained(vec![
        serving(1, 1, [true, true]),
        serving(2, 1, [true, true]),
    ]);
    one.affinity = Some(AffineEndpoint {
        endpoint: one.endpoints[1].address,
        seconds_left: 9,
    });
    assert_eq!(
        said(&one, &ServiceObjects::default()),
        ["affinity holds the client to another one", ""]
    );
}

#[test]
fn shares_and_weight_0_are_told_and_affinity_still_leads_there() {
    let mut one = explained(vec![
        serving(1, 3, [true, false]),
        serving(2, 1, [true, false]),
        serving(3, 0, [true, true]),
    ]);
    let share = |slots| Some(Share { slots, of: 4 });
    let shares = |one| Vec::from_iter(rows(one, None).iter().map(|row| row.share));
    assert_eq!(shares(&one), [share(3), share(1), None]);
    let reason = &rows(&one, None)[2].because;
    assert!(reason.contains("service.portolan.dev/weight"), "{reason}");
    one.affinity = Some(AffineEndpoint {
        endpoint: one.endpoints[2].address,
        seconds_left: 9,
    });
    let can = |one| Vec::from_iter(rows(one, None).iter().map(|row| row.can_answer));
    assert_eq!(can(&one), [false, false, true]);
}

#[test]
fn endpoints_that_only_kubernetes_lists_are_added() {
    let one = explained(vec![serving(1, 1, [true, true])]);
    let not_ready = endpoint(4, ", conditions: {ready: false, serving: false}");
    let all = [endpoint(1, ""), not_ready, endpoint(6, "")].join(", ");
    let rows = rows(&one, Some((&objects(&[&all]), WANTED)));
    let said: Vec<_> = rows
        .iter()
        .map(|row| (row.pod.as_deref(), &*row.address, row.can_answer))
        .collect();
    assert_eq!(
        said,
        [
            (Some("shop/cart-1"), "10.40.1.1:8080", true),
            (Some("shop/cart-4"), "10.40.1.4", false),
            (Some("shop/cart-6"), "10.40.1.6:8080", false)
        ]
    );
    assert_eq!(rows[1].because, "not ready");
    assert!(rows[1].remedy.contains("describe pod cart-4"));
    let absent = "listed by Kubernetes, and not in the maps";
    assert!(rows[2].because.starts_with(absent));
}

#[test]
fn an_address_in_two_slices_is_listed_once_more_with_the_reason() {
    let one = explained(vec![serving(1, 1, [true, true])]);
    let unready = endpoint(1, ", conditions: {ready: false}");
    for slices in [
        [&*unready, &*endpoint(1, "")],
        [&*endpoint(1, ""), &*unready],
    ] {
        let rows = rows(&one, Some((&objects(&slices), WANTED)));
        assert_eq!(rows.len(), 2, "{rows:?}");
        assert!(rows[0].can_answer);
        assert!(
            rows[1]
                .because
                .starts_with("listed once more, by EndpointSlice cart-")
        );
    }
}
