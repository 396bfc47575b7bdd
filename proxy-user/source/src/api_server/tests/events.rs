// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests that warnings about objects become events: of an agent those about its node, of the
//! controller the others. Time is paused: it goes on only while nobody has anything to do.

use std::time::Duration;

use axum::http::Method;
use control::{
    object::{ObjectName, Warning, uid_hash},
    warnings::{News, Topic, Warnings},
};
use serde_json::Value;
use tokio::time::sleep;

use super::{super::events, Fake, fake::Answer, service, store::Fault};

const SERVICES: &str = "/api/v1/namespaces/shop/services";
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/shop/events";
const NODES: &str = "/api/v1/nodes";
const UID: &str = "11-22";
/// Longer than a report waits.
const SOON: Duration = Duration::from_secs(5);

/// Starts a server that answers lists of services in this way, and what writes events there;
/// returns the warnings that become events.
async fn start<const N: usize>(of_objects: bool, answers: [Answer; N]) -> (Fake, Warnings) {
    let fake = Fake::start().await;
    fake.script(SERVICES, answers);
    fake.script(NODES, [listed("5")]);
    let client = fake.client().await;
    let (warnings, reports) = events::reported(of_objects);
    tokio::spawn(events::publish(client, "node-a".to_owned(), reports));
    (fake, warnings)
}

/// Warns about the service for so many reasons, and for no other.
fn warn(warnings: &Warnings, uid: &str, reasons: usize) {
    let all = (0..reasons).map(|number| Warning {
        object: "Service shop/cart".into(),
        reason: number.to_string(),
    });
    let topic = Topic::Plan(ObjectName::new("shop", "cart"));
    warnings.replace_of(topic, uid_hash(Some(uid)), all.collect());
}

/// Returns the answer to a list of the service by its name.
fn listed(uid: &str) -> Answer {
    let mut object = service("cart", 1);
    object["metadata"]["uid"] = uid.into();
    object["kind"] = "PartialObjectMetadata".into();
    object["apiVersion"] = "meta.k8s.io/v1".into();
    Answer::page(&[object], None)
}

fn notes(posted: &[Value]) -> Vec<&str> {
    let notes = posted.iter().map(|event| event["note"].as_str());
    notes.map(Option::unwrap_or_default).collect()
}

#[tokio::test(start_paused = true)]
async fn warnings_about_objects_become_events_unless_they_end_at_once() {
    let (fake, warnings) = start(true, [listed(UID), listed(UID)]).await;
    warn(&warnings, UID, 5);
    tokio::task::yield_now().await;
    warn(&warnings, UID, 2);
    warnings.report_node("node-a", News::Healthy, "serves");
    sleep(SOON).await;
    let posted = fake.posted();
    assert_eq!(notes(&posted), ["0", "1"]);
    assert!(fake.asked(SERVICES)[0].contains("metadata.name%3Dcart"));
    let event = &posted[0];
    assert_eq!(event["metadata"]["namespace"], "shop");
    assert_eq!(event["type"], "Warning");
    assert_eq!(event["regarding"]["uid"], UID);
    assert_eq!(event["regarding"]["kind"], "Service");
    // What holds on is not written again.
    sleep(100 * SOON).await;
    assert_eq!(fake.asked(SERVICES).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_event_that_could_not_be_written_is_tried_again_unless_it_is_forbidden() {
    for (code, written) in [(500, 1), (403, 0)] {
        let (fake, warnings) = start(true, [listed(UID), listed(UID), listed(UID)]).await;
        let refused = Some(Fault::Refused(code, "no"));
        fake.set_fault(Method::POST, EVENTS, refused);
        warn(&warnings, UID, 1);
        sleep(SOON).await;
        fake.set_fault(Method::POST, EVENTS, None);
        sleep(SOON).await;
        assert_eq!(fake.posted().len(), written);
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_made_anew_gets_another_event_and_a_gone_one_none() {
    let gone = Answer::page(&[], None);
    let (fake, warnings) = start(true, [listed("1"), listed("2"), gone, listed("4")]).await;
    // The third is gone when its event is to be written, and another has the fourth's name.
    for uid in ["1", "2", "3", "3-too"] {
        warn(&warnings, uid, 1);
        sleep(SOON).await;
    }
    let posted = fake.posted();
    let uids: Vec<_> = posted.iter().map(|e| &e["regarding"]["uid"]).collect();
    assert_eq!(uids, ["1", "2"]);
    assert_eq!(fake.asked(SERVICES).len(), 4);
}

#[tokio::test(start_paused = true)]
async fn an_agent_writes_events_about_its_node_only() {
    let (fake, warnings) = start(false, []).await;
    warn(&warnings, UID, 1);
    warnings.report_node("node-a", News::Healthy, "serves");
    sleep(SOON).await;
    let posted = fake.posted();
    assert_eq!(notes(&posted), ["serves"]);
    assert_eq!(posted[0]["regarding"]["uid"], "5");
    assert_eq!(fake.asked(SERVICES), Vec::<String>::new());
}
