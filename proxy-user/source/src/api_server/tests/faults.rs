// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests a server that refuses, forgets, or ends a watch in the middle.

use std::time::Duration;

use serde_json::json;

use super::{
    Heard,
    fake::{Answer, Fake, SERVICE_CIDRS, SERVICES},
    service, source,
};

#[tokio::test]
async fn a_watch_cut_off_inside_an_object_continues_after_the_last_whole_one() {
    let fake = Fake::start().await;
    fake.script(
        SERVICES,
        [
            Answer::initial(&[service("one", 5)])
                .then(&[("ADDED", service("two", 6)), ("ADDED", service("three", 7))])
                .cut(100),
            Answer::watch(&[("ADDED", service("three", 7))]),
        ],
    );
    let mut heard = Heard::from(&fake);
    let all = ["one", "three", "two"];
    heard.until("what was cut", |heard| heard.has(&all)).await;
    let again = &fake.asked(SERVICES)[1];
    assert!(
        again.contains("resourceVersion=6"),
        "no second list: {again}"
    );
}

#[tokio::test]
async fn objects_deleted_while_a_watch_had_expired_are_removed() {
    let fake = Fake::start().await;
    let gone = json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"});
    fake.script(
        SERVICES,
        [
            Answer::initial(&[service("one", 1), service("two", 2)]).then(&[("ERROR", gone)]),
            Answer::initial(&[service("two", 9)]).close(),
            // The same answer to the request itself, which must not be repeated for ever.
            Answer::Status(410, "too old resource version"),
            Answer::initial(&[service("three", 12)]),
        ],
    );
    let mut heard = Heard::from(&fake);
    heard
        .until("the second list", |heard| heard.has(&["two"]))
        .await;
    heard
        .until("the third list", |heard| heard.has(&["three"]))
        .await;
    assert!(
        heard.faults.is_empty(),
        "nothing is wrong: {:?}",
        heard.faults
    );
}

#[tokio::test]
async fn a_server_that_answers_with_errors_is_reported_and_retried() {
    let fake = Fake::start().await;
    fake.script(
        SERVICES,
        [
            Answer::Status(429, "too many requests"),
            Answer::Status(500, "etcd is away"),
            Answer::Status(503, "starting"),
            Answer::initial(&[service("one", 1)]).after(Duration::from_millis(300)),
        ],
    );
    let mut heard = Heard::from(&fake);
    heard
        .until("a fault", |heard| !heard.faults.is_empty())
        .await;
    let fault = heard.faults[0].to_string();
    assert!(
        fault.contains("its Services cannot be followed") && fault.contains("too many requests"),
        "{fault}"
    );
    heard
        .until("the list", |heard| heard.has(&["one"]) && heard.complete)
        .await;
    heard
        .until("the end of the fault", |heard| heard.faults.is_empty())
        .await;
}

#[tokio::test]
async fn a_server_without_the_service_cidr_api_has_no_ranges_and_no_fault() {
    let fake = Fake::start().await;
    let unknown = Answer::Status(404, "the server could not find the requested resource");
    fake.script(SERVICE_CIDRS, [unknown]);
    let mut heard = Heard::from_source(source(&fake).with_service_cidrs(true));
    heard.until("all lists", |heard| heard.complete).await;
    assert!(heard.faults.is_empty(), "{:?}", heard.faults);
    assert!(heard.ranges.is_empty());
}
