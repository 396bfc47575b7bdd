// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of how what is wanted is written, at a server that refuses, waits, and has other writers.
//! Time is paused: it goes on only while nobody has anything to do.

use std::{fs, time::Duration};

use axum::http::Method;
use control::{
    gateway::Write,
    model::{Kind, ObjectKey},
};
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use tokio::{
    sync::mpsc::{UnboundedSender, unbounded_channel},
    time::sleep,
};
use tracing::subscriber::DefaultGuard;

use super::{
    super::controller::publish::{News, publish},
    Fake,
    store::{Fault, Written},
};

const GATEWAYS: &str = "/apis/gateway.networking.k8s.io/v1/namespaces/shop/gateways";
const SERVICES: &str = "/api/v1/namespaces/shop/services";
pub(super) const SECOND: Duration = Duration::from_secs(1);

fn path(name: &str) -> String {
    format!("{GATEWAYS}/{name}")
}
fn status(name: &str) -> String {
    format!("{GATEWAYS}/{name}/status")
}

/// Starts a writer; returns what takes what is wanted.
async fn writer(fake: &Fake) -> UnboundedSender<News> {
    let (wanted, news) = unbounded_channel();
    tokio::spawn(publish(fake.client().await, news));
    wanted
}

fn condition(kind: &str, message: &str) -> Value {
    json!({"type": kind, "status": "True", "reason": kind, "message": message, "observedGeneration": 1})
}

/// Wants a status with this message.
fn want(wanted: &UnboundedSender<News>, name: &str, message: &str) {
    let object = ObjectKey::new(Kind::Gateway, "shop", name);
    let status =
        json!({"addresses": [], "conditions": [condition("Accepted", message)], "listeners": []});
    let sent = wanted.send((object, Some(Write::Status(status))));
    sent.expect("it writes");
}

/// Puts a Gateway without a status of ours into the server.
fn create(fake: &Fake, name: &str) {
    let mut foreign = condition("example.org/Backup", "");
    foreign["lastTransitionTime"] = json!("2026-01-01T00:00:00Z");
    let gateway = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"name": name, "namespace": "shop"},
        "status": {"conditions": [foreign], "attachedListenerSets": 3},
    });
    fake.put(&path(name), gateway);
}

/// Starts a server with the Gateway `edge`.
async fn with_gateway() -> Fake {
    let fake = Fake::start().await;
    create(&fake, "edge");
    fake
}

/// Returns the message of each status that was written, and the answers.
fn messages(written: &[Written]) -> Vec<(&str, u16)> {
    let all = written.iter().filter(|one| one.method == Method::PATCH);
    all.map(|one| {
        let conditions = one.body["status"]["conditions"].as_array();
        let last = conditions.and_then(|all| all.last()).expect("a condition");
        (last["message"].as_str().expect("a message"), one.code)
    })
    .collect()
}

/// The lines of the log that this test's thread writes.
pub(super) struct Lines(NamedTempFile);

impl Lines {
    pub(super) fn start() -> (Self, DefaultGuard) {
        let file = NamedTempFile::new().expect("a file");
        let writer = file.reopen().expect("the same file");
        let log = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(writer);
        (Self(file), tracing::subscriber::set_default(log.finish()))
    }
    pub(super) fn warnings(&self) -> Vec<String> {
        let text = fs::read_to_string(self.0.path()).expect("text");
        let warnings = text.lines().filter(|line| line.contains("WARN"));
        warnings.map(str::to_owned).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn it_writes_over_what_it_has_read_and_only_its_own_part() {
    let fake = with_gateway().await;
    let version = fake.object(&path("edge"))["metadata"]["resourceVersion"].clone();
    let wanted = writer(&fake).await;
    want(&wanted, "edge", "one");
    sleep(SECOND).await;
    let written = fake.written(GATEWAYS);
    assert_eq!(messages(&written), [("one", 200)]);
    assert_eq!(written[0].path, status("edge"));
    assert_eq!(written[0].body["metadata"]["resourceVersion"], version);
    let now = fake.object(&path("edge"))["status"].clone();
    assert_eq!(now["attachedListenerSets"], 3);
    assert_eq!(now["conditions"][0]["type"], "example.org/Backup");
    let time = &now["conditions"][0]["lastTransitionTime"];
    assert_eq!(time, "2026-01-01T00:00:00Z");
    assert_eq!(now["conditions"][1]["message"], "one");
    assert!(now["conditions"][1]["lastTransitionTime"].is_string());
    // It is right already.
    want(&wanted, "edge", "one");
    sleep(60 * SECOND).await;
    assert_eq!(fake.written(GATEWAYS).len(), 1);
    // What is gone needs nothing.
    want(&wanted, "gone", "two");
    want(&wanted, "edge", "two");
    sleep(SECOND).await;
    let written = fake.written(GATEWAYS);
    assert_eq!(messages(&written), [("one", 200), ("two", 200)]);
    // Nor is a status of an older object written over a newer one.
    let mut newer = fake.object(&path("edge"));
    newer["metadata"]["generation"] = json!(2);
    fake.put(&path("edge"), newer);
    want(&wanted, "edge", "of generation 1");
    sleep(60 * SECOND).await;
    assert_eq!(fake.written(GATEWAYS).len(), 2);
}

/// Starts a writer that has read the Gateway `edge`, and whose writing takes a second.
async fn has_read(fake: &Fake) -> UnboundedSender<News> {
    let wait = Fault::Delayed(SECOND);
    fake.set_fault(Method::PATCH, &status("edge"), Some(wait));
    let wanted = writer(fake).await;
    want(&wanted, "edge", "one");
    while fake.read(&path("edge")) == 0 {
        sleep(SECOND / 10).await;
    }
    wanted
}

#[tokio::test(start_paused = true)]
async fn a_service_that_somebody_has_made_is_neither_changed_nor_deleted() {
    let fake = Fake::start().await;
    let theirs = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "gateway-edge", "namespace": "shop"}});
    let owners = json!([{"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "name": "other", "uid": "g"}]);
    let labels = json!({"portolan.dev/gateway": "gateway-other"});
    let ours = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "gateway-other", "namespace": "shop", "uid": "u", "labels": labels, "ownerReferences": owners}, "spec": {"ports": [{"port": 80}, {"port": 81}]}});
    fake.put(&format!("{SERVICES}/gateway-edge"), theirs.clone());
    fake.put(&format!("{SERVICES}/gateway-other"), ours.clone());
    let wanted = writer(&fake).await;
    let set = |name: &str, write| {
        let service = ObjectKey::new(Kind::Service, "shop", name);
        wanted.send((service, Some(write))).expect("it writes");
    };
    for write in [Write::Delete, Write::Apply(theirs)] {
        set("gateway-edge", write);
        sleep(SECOND).await;
        assert_eq!(fake.written(SERVICES).len(), 0);
    }
    // A port that somebody has added goes first.
    let spec = json!({"ports": [{"port": 80}]});
    set("gateway-other", Write::Apply(json!({"spec": spec})));
    sleep(SECOND).await;
    let written = fake.written(SERVICES);
    assert_eq!(written.len(), 2);
    assert_eq!(written[0].body["spec"], spec);
    assert_eq!(written[0].body["metadata"]["resourceVersion"], "2");
    fake.put(&format!("{SERVICES}/gateway-other"), ours);
    set("gateway-other", Write::Delete);
    sleep(SECOND).await;
    let written = fake.written(SERVICES);
    assert_eq!(written[2].method, Method::DELETE);
    assert_eq!(written[2].body["preconditions"]["uid"], "u");
}

#[tokio::test(start_paused = true)]
async fn after_a_conflict_the_fresh_object_is_written_over_without_a_word() {
    let (lines, _guard) = Lines::start();
    let fake = with_gateway().await;
    let _wanted = has_read(&fake).await;
    // Another writer is faster.
    assert_eq!(fake.written(GATEWAYS).len(), 0);
    let mut object = fake.object(&path("edge"));
    object["status"]["conditions"][0]["message"] = json!("newer");
    fake.put(&path("edge"), object);
    fake.set_fault(Method::PATCH, &status("edge"), None);
    sleep(6 * SECOND).await;
    let written = fake.written(GATEWAYS);
    assert_eq!(messages(&written), [("one", 409), ("one", 200)]);
    let conditions = &fake.object(&path("edge"))["status"]["conditions"];
    assert_eq!(conditions[0]["message"], "newer");
    assert_eq!(conditions[1]["message"], "one");
    assert_eq!(lines.warnings(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn an_object_that_goes_while_it_is_written_needs_nothing() {
    let (lines, _guard) = Lines::start();
    let fake = with_gateway().await;
    let _wanted = has_read(&fake).await;
    fake.remove(&path("edge"));
    sleep(60 * SECOND).await;
    assert_eq!(messages(&fake.written(GATEWAYS)), [("one", 404)]);
    assert_eq!(lines.warnings(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_missing_right_is_said_once_with_the_remedy_and_tried_again_with_growing_pauses() {
    let (lines, _guard) = Lines::start();
    let fake = with_gateway().await;
    create(&fake, "other");
    let refused = Fault::Refused(403, "gateways is forbidden");
    fake.set_fault(Method::PATCH, &status("edge"), Some(refused));
    let wanted = writer(&fake).await;
    // What changes meanwhile waits, too. Another object can be written all the time.
    for number in 0..300 {
        want(&wanted, "edge", &number.to_string());
        want(&wanted, "other", &number.to_string());
        sleep(2 * SECOND).await;
    }
    assert!(fake.written(&path("other")).len() > 290);
    let refused = fake.written(&path("edge"));
    let pauses = refused.windows(2).map(|pair| pair[1].at - pair[0].at);
    let pauses: Vec<_> = pauses.map(|pause| pause.as_secs_f64().round()).collect();
    let expected = [1.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0];
    assert_eq!(pauses[..expected.len()], expected);
    let warnings = lines.warnings();
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    for part in "Gateway shop/edge,is forbidden,role,docs/security.md".split(',') {
        assert!(warnings[0].contains(part), "{part}: {warnings:?}");
    }
    fake.set_fault(Method::PATCH, &status("edge"), None);
    sleep(60 * SECOND).await;
    let written = fake.written(&path("edge"));
    assert_eq!(messages(&written).last(), Some(&("299", 200)));
}
