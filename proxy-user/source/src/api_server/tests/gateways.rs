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
const CLASSES: &str = "/apis/gateway.networking.k8s.io/v1/gatewayclasses";
const GATEWAYS: &str = "/apis/gateway.networking.k8s.io/v1/gateways";
const TCP_ROUTES: &str = "/apis/gateway.networking.k8s.io/v1/tcproutes";
const UDP_ROUTES: &str = "/apis/gateway.networking.k8s.io/v1/udproutes";
const GRANTS: &str = "/apis/gateway.networking.k8s.io/v1/referencegrants";

fn gateway() -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"name": "edge", "namespace": "shop", "resourceVersion": "7"},
        "spec": {"gatewayClassName": "l4", "listeners": []}
    })
}

#[tokio::test]
async fn a_server_without_the_kinds_is_asked_once_and_everything_else_is_complete() {
    let fake = Fake::start().await;
    fake.script(GROUPS, [Answer::groups(&[OTHERS])]);
    for path in [CLASSES, GATEWAYS, TCP_ROUTES, UDP_ROUTES, GRANTS] {
        fake.script(path, [Answer::Status(404, "not found")]);
    }
    fake.script(SERVICES, [Answer::initial(&[service("cart", 1)])]);
    let mut heard = Heard::from_source(gateway_source(&fake));
    heard.complete().await;
    assert!(heard.has(&["cart"]));
    assert_eq!(fake.asked(GATEWAYS).len(), 1);
    assert_eq!(heard.faults, []);
}

#[tokio::test(start_paused = true)]
async fn services_do_not_wait_long_for_kinds_that_cannot_be_listed() {
    let fake = Fake::start().await;
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
    fake.script(GROUP, [Answer::kinds(GATEWAY_API, &["Gateway"])]);
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
    let is_over = |heard: &Heard| heard.names(Kind::Gateway).is_empty() && heard.faults.is_empty();
    heard.until("the end", is_over).await;
}
