// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kinds of the Gateway API at a server that has them, and at one that does not.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    Heard,
    fake::{Answer, Fake, SERVICES},
    service, source,
};

const GROUP: &str = "/apis/gateway.networking.k8s.io/v1";
const ROUTES: &str = "/apis/gateway.networking.k8s.io/v1/tcproutes";
const GATEWAYS: &str = "/apis/gateway.networking.k8s.io/v1/gateways";
const NAMESPACES: &str = "/api/v1/namespaces";

fn kinds(all: &[&str]) -> Answer {
    let resources: Vec<Value> = all
        .iter()
        .map(|kind| {
            json!({"name": kind.to_lowercase(), "singularName": "", "namespaced": true, "kind": kind, "verbs": ["list", "watch"]})
        })
        .collect();
    Answer::Page(json!({
        "kind": "APIResourceList", "apiVersion": "v1",
        "groupVersion": "gateway.networking.k8s.io/v1", "resources": resources
    }))
}

fn gateway() -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"name": "edge", "namespace": "shop", "resourceVersion": "7"},
        "spec": {"gatewayClassName": "l4", "listeners": []}
    })
}

#[tokio::test]
async fn a_server_without_the_kinds_is_asked_once_and_everything_else_is_complete() {
    for answer in [
        Answer::Status(404, "not found"),
        kinds(&["HTTPRoute", "Gateway"]),
    ] {
        let fake = Fake::start().await;
        fake.script(GROUP, [answer]);
        fake.script(SERVICES, [Answer::initial(&[service("cart", 1)])]);
        let mut heard = Heard::from_source(source(&fake).with_gateways(true));
        heard.until("all", |heard| heard.complete).await;
        assert_eq!(heard.services, ["cart"]);
        assert_eq!(fake.asked(GROUP).len(), 1);
        assert_eq!(fake.asked(ROUTES).len() + fake.asked(NAMESPACES).len(), 0);
        assert_eq!(heard.faults, []);
    }
}

#[tokio::test]
async fn a_server_with_the_kinds_is_complete_when_they_are_listed() {
    let fake = Fake::start().await;
    fake.script(GROUP, [kinds(&["Gateway", "TCPRoute"])]);
    fake.script(GATEWAYS, [Answer::initial(&[gateway()])]);
    let mut heard = Heard::from_source(source(&fake).with_gateways(true));
    heard
        .until("the Gateway", |heard| heard.gateways == ["edge"])
        .await;
    heard.until("all", |heard| heard.complete).await;
    for path in [ROUTES, GATEWAYS, NAMESPACES] {
        assert!(!fake.asked(path).is_empty(), "{path}");
    }
    assert_eq!(heard.faults, []);
}

#[tokio::test]
async fn without_the_setting_nobody_asks() {
    let fake = Fake::start().await;
    let mut heard = Heard::from_source(source(&fake));
    heard.until("all", |heard| heard.complete).await;
    for path in [GROUP, GATEWAYS, NAMESPACES] {
        assert_eq!(fake.asked(path).len(), 0, "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn services_do_not_wait_long_for_kinds_that_cannot_be_listed() {
    let fake = Fake::start().await;
    fake.script(GROUP, [kinds(&["Gateway", "TCPRoute"])]);
    let refused: [Answer; 50] = std::array::from_fn(|_| Answer::Status(403, "not allowed"));
    fake.script(GATEWAYS, refused);
    fake.script(SERVICES, [Answer::initial(&[service("cart", 1)])]);
    let mut heard = Heard::from_source(source(&fake).with_gateways(true));
    heard
        .until("the fault", |heard| !heard.faults.is_empty())
        .await;
    assert!(
        heard.faults[0].reason.contains("Gateways"),
        "{:?}",
        heard.faults
    );
    assert!(!heard.listed, "it may be for a moment only");
    tokio::time::sleep(Duration::from_secs(40)).await;
    heard.until("the services", |heard| heard.listed).await;
    assert!(
        !heard.complete,
        "pinned Gateways stay until Gateways are known"
    );
    assert_eq!(heard.services, ["cart"]);
}

#[tokio::test]
async fn gateways_outlast_a_server_that_does_not_know_the_kind_for_a_moment() {
    let fake = Fake::start().await;
    fake.script(GROUP, [kinds(&["Gateway", "TCPRoute"])]);
    let unknown = || Answer::Status(404, "not found");
    let list = Answer::initial(&[gateway()]).close();
    // A server that starts has forgotten the version, and one that lags does not know the kind.
    let gone = Answer::Status(410, "too old");
    let goes_on = Answer::initial(&[gateway()]);
    fake.script(GATEWAYS, [list, gone, unknown(), unknown(), goes_on]);
    let mut heard = Heard::from_source(source(&fake).with_gateways(true));
    heard
        .until("the fault", |heard| !heard.faults.is_empty())
        .await;
    heard
        .until("the end of the fault", |heard| heard.faults.is_empty())
        .await;
    assert_eq!(heard.gateways, ["edge"]);
}
