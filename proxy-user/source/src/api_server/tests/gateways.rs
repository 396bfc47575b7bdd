// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kinds of the Gateway API at a server that has them, and at one that does not.

use std::time::Duration;

use control::model::Kind;
use serde_json::{Value, json};

use super::{
    Heard,
    fake::{Answer, Fake, GATEWAY_API, GROUPS, SERVICES},
    gateway_source, service,
};

const OTHERS: &str = "discovery.k8s.io";
const GROUP: &str = "/apis/gateway.networking.k8s.io/v1";
const ROUTES: &str = "/apis/gateway.networking.k8s.io/v1/tcproutes";
const GATEWAYS: &str = "/apis/gateway.networking.k8s.io/v1/gateways";
const NAMESPACES: &str = "/api/v1/namespaces";

fn kinds(all: &[&str]) -> Answer {
    Answer::kinds(GATEWAY_API, all)
}

fn gateway() -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"name": "edge", "namespace": "shop", "resourceVersion": "7"},
        "spec": {"gatewayClassName": "l4", "listeners": []}
    })
}

/// Whether these Gateways exist, and nothing is wrong.
fn is_fine(heard: &Heard, gateways: &[&str]) -> bool {
    heard.names(Kind::Gateway) == gateways && heard.faults.is_empty()
}

#[tokio::test]
async fn a_server_without_the_kinds_is_asked_once_and_everything_else_is_complete() {
    for groups in [&[OTHERS][..], &[OTHERS, GATEWAY_API]] {
        let fake = Fake::start().await;
        fake.script(GROUPS, [Answer::groups(groups)]);
        fake.script(GROUP, [kinds(&["HTTPRoute", "Gateway"])]);
        fake.script(SERVICES, [Answer::initial(&[service("cart", 1)])]);
        let mut heard = Heard::from_source(gateway_source(&fake));
        heard.complete().await;
        assert!(heard.has(&["cart"]));
        assert_eq!(fake.asked(GROUPS).len(), 1);
        assert_eq!(fake.asked(ROUTES).len() + fake.asked(NAMESPACES).len(), 0);
        assert_eq!(heard.faults, []);
    }
}

#[tokio::test(start_paused = true)]
async fn services_do_not_wait_long_for_kinds_that_cannot_be_listed() {
    let fake = Fake::start().await;
    fake.script(GROUP, [kinds(&["Gateway", "TCPRoute"])]);
    let refused: [Answer; 50] = std::array::from_fn(|_| Answer::Status(403, "not allowed"));
    fake.script(GATEWAYS, refused);
    fake.script(SERVICES, [Answer::initial(&[service("cart", 1)])]);
    let mut heard = Heard::from_source(gateway_source(&fake));
    let fault = heard.fault().await;
    assert!(fault.contains("Gateways"), "{fault}");
    assert!(!heard.listed, "it may be for a moment only");
    tokio::time::sleep(Duration::from_secs(40)).await;
    heard.until("the services", |heard| heard.listed).await;
    assert!(!heard.complete, "pinned Gateways stay");
    assert!(heard.has(&["cart"]));
}

#[tokio::test(start_paused = true)]
async fn gateways_outlast_404s_until_the_server_lists_its_groups_without_them() {
    let fake = Fake::start().await;
    fake.script(GROUP, [kinds(&["Gateway", "TCPRoute"])]);
    let unknown: [Answer; 100] = std::array::from_fn(|at| match at {
        0 => Answer::initial(&[gateway()]).close(),
        // A server that starts has forgotten the version, and a proxy before it knows nothing.
        1 => Answer::Status(410, "too old"),
        _ => Answer::Status(404, "not found"),
    });
    fake.script(GATEWAYS, unknown);
    let mut heard = Heard::from_source(gateway_source(&fake));
    heard.complete().await;
    assert_eq!(heard.names(Kind::Gateway), ["edge"]);
    for groups in [
        Answer::groups(&[OTHERS, GATEWAY_API]),
        Answer::Status(404, "not found"),
        Answer::groups(&[]),
    ] {
        fake.script(GROUPS, [groups]);
        tokio::time::sleep(Duration::from_secs(60)).await;
        while let Ok(batch) = heard.batches.try_recv() {
            heard.take(batch);
        }
        assert_eq!(heard.names(Kind::Gateway), ["edge"]);
        assert!(!heard.faults.is_empty());
    }
    fake.script(GROUPS, [Answer::groups(&[OTHERS])]);
    tokio::time::sleep(Duration::from_secs(20)).await;
    heard.until("the end", |heard| is_fine(heard, &[])).await;
}

#[tokio::test(start_paused = true)]
async fn a_404_at_the_start_is_no_server_without_the_kinds() {
    let fake = Fake::start().await;
    fake.script(GROUPS, [Answer::Status(404, "not found")]);
    fake.script(GATEWAYS, [Answer::initial(&[gateway()])]);
    let mut heard = Heard::from_source(gateway_source(&fake));
    heard.fault().await;
    assert!(!heard.complete, "pinned Gateways stay");
    fake.script(GROUPS, [Answer::groups(&[GATEWAY_API])]);
    fake.script(GROUP, [kinds(&["Gateway", "TCPRoute"])]);
    tokio::time::sleep(Duration::from_secs(10)).await;
    let is_there = |heard: &Heard| is_fine(heard, &["edge"]);
    heard.until("the Gateway", is_there).await;
}
