// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests that warnings about objects become events, and of how often nodes ask for them. Time is
//! paused: it goes on only while nobody has anything to do.

use std::time::Duration;

use control::{
    object::{ObjectName, Warning, uid_hash},
    warnings::{News, Topic, Warnings},
};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::{
    super::events::{self, REST},
    Fake,
    fake::Answer,
    service,
};

const SERVICES: &str = "/api/v1/namespaces/shop/services";
const UID: &str = "11-22";
/// Longer than any node waits before its first request.
const DELAY: Duration = Duration::from_secs(31);

/// Returns a server that answers lists of services in this way.
async fn server<const N: usize>(answers: [Answer; N]) -> Fake {
    fastrand::seed(1);
    let fake = Fake::start().await;
    fake.script(SERVICES, answers);
    fake
}

/// Returns the warnings of a node whose events are written to this server.
async fn node(fake: &Fake, name: &str, of_objects: bool) -> Warnings {
    let client = fake.client().await;
    let (warnings, reports) = events::reported(of_objects);
    tokio::spawn(events::publish(client, name.to_owned(), reports));
    warnings
}

/// Has a node warn about the service for these reasons, and for no other.
fn warn(warnings: &Warnings, uid: &str, reasons: &[String]) {
    let all = reasons.iter().map(|reason| Warning {
        object: "Service shop/cart".into(),
        reason: reason.clone(),
    });
    let topic = Topic::Plan(ObjectName::new("shop", "cart"));
    warnings.replace_of(topic, uid_hash(Some(uid)), all.collect());
}

fn reasons(number: usize) -> Vec<String> {
    (0..number).map(|number| number.to_string()).collect()
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
async fn of_fifty_nodes_with_one_warning_one_writes_the_event_and_the_others_find_it() {
    let fake = server::<50>(std::array::from_fn(|_| listed(UID))).await;
    let mut nodes = Vec::new();
    for number in 0..50 {
        let warnings = node(&fake, &format!("node-{number}"), true).await;
        warn(&warnings, UID, &reasons(1));
        nodes.push(warnings);
    }
    sleep(DELAY).await;
    assert_eq!(fake.looked_up(), 50, "one request a node");
    let posted = fake.posted();
    assert_eq!(notes(&posted), ["0"]);
    // Time stands still while a node writes, so no second one finds the event missing.
    assert_eq!(fake.asked(SERVICES).len(), 1);
    assert!(fake.asked(SERVICES)[0].contains("metadata.name%3Dcart"));
    let event = &posted[0];
    assert_eq!(event["metadata"]["namespace"], "shop");
    assert_eq!(event["type"], "Warning");
    assert_eq!(event["regarding"]["uid"], UID);
    assert_eq!(event["regarding"]["kind"], "Service");
    // No node asks again.
    sleep(100 * DELAY).await;
    assert_eq!(fake.looked_up(), 50);
}

#[tokio::test(start_paused = true)]
async fn a_warning_that_ends_before_the_node_asks_costs_no_request() {
    let fake = server([]).await;
    let warnings = node(&fake, "node-a", true).await;
    warn(&warnings, UID, &reasons(5));
    tokio::task::yield_now().await;
    warn(&warnings, UID, &[]);
    sleep(100 * DELAY).await;
    assert_eq!(fake.looked_up(), 0);
    assert_eq!(fake.posted(), Vec::<Value>::new());
}

#[tokio::test(start_paused = true)]
async fn the_node_that_writes_goes_on_at_once_and_the_others_ask_slowly() {
    const NUMBER: usize = 100;
    let fake = server::<NUMBER>(std::array::from_fn(|_| listed(UID))).await;
    let first = node(&fake, "node-a", true).await;
    warn(&first, UID, &reasons(NUMBER));
    sleep(DELAY + Duration::from_secs(NUMBER as u64)).await;
    assert_eq!(fake.posted().len(), NUMBER);
    let asked = fake.looked_up();
    assert_eq!(asked, NUMBER, "once for each");

    let second = node(&fake, "node-b", true).await;
    warn(&second, UID, &reasons(NUMBER));
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(3600) {
        sleep(REST).await;
        let rests = begin.elapsed().div_duration_f64(REST);
        let asked = (fake.looked_up() - asked) as f64;
        assert!(asked <= rests + 1.0, "{asked} requests in {rests} rests");
    }
    let looked_up = fake.looked_up();
    assert_eq!(looked_up - asked, NUMBER, "one after the other");
    assert_eq!(fake.posted().len(), NUMBER);
}

#[tokio::test(start_paused = true)]
async fn an_object_made_anew_gets_another_event_and_a_gone_one_none() {
    let gone = Answer::page(&[], None);
    let fake = server([listed("1"), listed("2"), gone, listed("4")]).await;
    let warnings = node(&fake, "node-a", true).await;
    // The third is gone when its event is to be written, and another has the fourth's name.
    for uid in ["1", "2", "3", "3-too"] {
        warn(&warnings, uid, &reasons(1));
        sleep(2 * DELAY).await;
    }
    let posted = fake.posted();
    let uids: Vec<_> = posted.iter().map(|e| &e["regarding"]["uid"]).collect();
    assert_eq!(uids, ["1", "2"]);
    assert_eq!(fake.asked(SERVICES).len(), 4);
}

#[tokio::test(start_paused = true)]
async fn nodes_get_their_events_at_once_even_if_objects_get_none() {
    const NODES: &str = "/api/v1/nodes";
    for of_objects in [true, false] {
        let fake = server([]).await;
        fake.script(NODES, [listed("5")]);
        let warnings = node(&fake, "node-a", of_objects).await;
        warn(&warnings, UID, &reasons(1));
        warnings.report_node("node-a", News::Healthy, "serves");
        sleep(Duration::from_millis(10)).await;
        let posted = fake.posted();
        assert_eq!(notes(&posted), ["serves"]);
        assert_eq!(posted[0]["regarding"]["uid"], "5");
        if !of_objects {
            sleep(100 * DELAY).await;
            assert_eq!(fake.looked_up(), 0);
            assert_eq!(fake.asked(SERVICES), Vec::<String>::new());
        }
    }
}
