// SPDX-License-Identifier: Apache-2.0 OR MIT

use datapath::read::AffineEndpoint;
use proxy_common::Settings;
use source::service::ServiceObjects;

use super::*;
use crate::explain::reasons::{self, tests::wanted};

fn address(last: &str) -> SocketAddr {
    format!("10.40.1.{last}:8080").parse().expect("an address")
}

/// Returns the decision with these endpoints of the maps: the last number of the address, slots,
/// and sets (c for cluster, l for local).
fn explained(endpoints: &str) -> Explained {
    let mut explained = Explained::unmatched(Settings::EMPTY, Counter::ForwardedNew, None);
    let endpoints = endpoints.split(", ").map(|endpoint| {
        let words: Vec<_> = endpoint.split(' ').collect();
        ServingEndpoint {
            address: address(words[0]),
            slots: words[1].parse().expect("a number"),
            cluster: words[2].contains('c'),
            local: words[2].contains('l'),
        }
    });
    explained.endpoints = endpoints.collect();
    explained
}

/// Returns the objects with these slices, separated by `/`. Their endpoints are separated by `+`:
/// the last number of the address, and further fields.
fn objects(slices: &str) -> ServiceObjects {
    let endpoint = |text: &str| {
        let (last, more) = text.split_at(1);
        format!(
            "{{addresses: [10.40.1.{last}], targetRef: {{kind: Pod, name: cart-{last}}}{more}}}"
        )
    };
    let slices = slices.split(" / ").enumerate().map(|(number, slice)| {
        let endpoints: Vec<_> = slice.split(" + ").map(endpoint).collect();
        format!(
            "---
kind: EndpointSlice
metadata: {{name: cart-{number}, namespace: shop, labels: {{kubernetes.io/service-name: cart}}}}
addressType: IPv4
ports: [{{name: http, port: 8080}}]
endpoints: [{}]
",
            endpoints.join(", ")
        )
    });
    reasons::tests::objects(&slices.collect::<String>())
}

/// Endpoints of the maps, slices, what else holds, and why each row cannot answer (or `-`).
const ROWS: &str = include_str!("endpoints.txt");

#[test]
fn endpoints_are_listed_with_the_reason_why_they_cannot_answer() {
    for [maps, slices, fact, expected] in control::testing::rows(ROWS) {
        let mut one = explained(&maps);
        one.local_only = fact == "local";
        if fact == "source" {
            one.counter = Counter::DroppedSource;
        }
        one.affinity = fact.strip_prefix("affinity ").map(|last| AffineEndpoint {
            endpoint: address(last),
            seconds_left: 9,
        });
        let objects = (slices != "none").then(|| objects(&slices));
        let rows = rows(&one, objects.as_ref().map(wanted));
        let expected: Vec<_> = expected.split("; ").collect();
        assert_eq!(rows.len(), expected.len(), "{maps} {slices}: {rows:?}");
        for (row, because) in rows.iter().zip(expected) {
            let is_said = row.reason.because.starts_with(because);
            assert!(
                row.can_answer == (because == "-") && (row.can_answer || is_said),
                "{row:?}"
            );
        }
    }
}

#[test]
fn a_row_has_address_pod_share_and_remedy() {
    let one = explained("1 3 c, 2 1 c");
    let objects = objects("1 + 2 + 4, conditions: {ready: false, serving: false}");
    let rows = rows(&one, Some(wanted(&objects)));
    let lines: Vec<_> = rows.iter().map(EndpointRow::line).collect();
    let expected = [
        "10.40.1.1:8080 (pod shop/cart-1), 75% of new connections",
        "10.40.1.2:8080 (pod shop/cart-2), 25% of new connections",
        "10.40.1.4 (pod shop/cart-4): not ready",
    ];
    assert_eq!(lines, expected);
    assert!(rows[2].reason.remedy.contains("describe pod cart-4"));
}
