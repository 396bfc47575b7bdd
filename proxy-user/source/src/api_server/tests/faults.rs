// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests a server that refuses, forgets, or ends a watch in the middle; and that its answers are
//! counted.

use std::time::{Duration, Instant};

use control::{model::Kind, object::Warning};
use http::Request;
use prometheus_client::{encoding::text::encode, registry::Registry};
use serde_json::json;

use super::{
    Heard,
    fake::{Answer, End, Fake, SERVICE_CIDRS, SERVICES},
    service, source,
};
use crate::ObjectSource;

#[tokio::test]
async fn a_watch_cut_off_inside_an_object_continues_after_the_last_whole_one() {
    let (fake, mut heard) = Heard::of([
        Answer::initial(&[service("one", 5)])
            .then(&[("ADDED", service("two", 6)), ("ADDED", service("three", 7))])
            .ending(End::Cut(100)),
        Answer::watch(&[("ADDED", service("three", 7))]),
    ])
    .await;
    heard.services(&["one", "three", "two"]).await;
    let again = &fake.asked(SERVICES)[1];
    assert!(again.contains("resourceVersion=6"), "a list: {again}");
}

#[tokio::test]
async fn objects_deleted_while_a_watch_had_expired_are_removed() {
    let gone = json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"});
    let (_fake, mut heard) = Heard::of([
        Answer::initial(&[service("one", 1), service("two", 2)]).then(&[("ERROR", gone)]),
        Answer::initial(&[service("two", 9)]).close(),
        // The same answer to the request itself, which must not be repeated for ever.
        Answer::Status(410, "too old resource version"),
        Answer::initial(&[service("three", 12)]),
    ])
    .await;
    heard.services(&["two"]).await;
    heard.services(&["three"]).await;
    assert_eq!(heard.faults, [], "nothing is wrong");
}

#[tokio::test]
async fn a_server_that_answers_with_errors_is_reported_and_retried() {
    let (_fake, mut heard) = Heard::of([
        Answer::Status(429, "too many requests"),
        Answer::Status(500, "etcd is away"),
        Answer::Status(503, "starting"),
        Answer::initial(&[service("one", 1)]).after(Duration::from_millis(300)),
    ])
    .await;
    let fault = heard.fault().await;
    for part in ["its Services cannot be followed", "too many requests"] {
        assert!(fault.contains(part), "{fault}");
    }
    heard.complete().await;
    assert!(heard.has(&["one"]));
    let is_over = |heard: &Heard| heard.faults.is_empty();
    heard.until("the end of the fault", is_over).await;
}

#[tokio::test]
async fn a_watch_error_without_a_message_is_described() {
    let watch = |status| Answer::watch(&[("ERROR", status)]);
    let full = json!({"code": 500, "message": "etcd is away"});
    let list = Answer::initial(&[service("one", 1)]).close();
    let list = list.after(Duration::from_secs(1));
    let (_fake, mut heard) = Heard::of([list, watch(json!({})), watch(full)]).await;
    for text in [
        "watching was refused: the server says neither",
        "etcd is away",
    ] {
        let is_so = |fault: &Warning| fault.reason.contains(text);
        let is_said = |heard: &Heard| heard.faults.iter().any(is_so);
        heard.until(text, is_said).await;
    }
}

#[tokio::test]
async fn a_server_that_names_a_time_is_not_asked_before() {
    let begun = Instant::now();
    let list = Answer::initial(&[service("one", 1)]);
    let (_fake, mut heard) = Heard::of([Answer::Busy(2), list]).await;
    heard.services(&["one"]).await;
    assert!(begun.elapsed() >= Duration::from_secs(2));
}

#[tokio::test]
async fn a_watch_that_ends_at_once_is_asked_for_again_with_growing_pauses() {
    let answers: [Answer; 100] = std::array::from_fn(|at| match at {
        0 => Answer::initial(&[service("one", 1)]).close(),
        _ => Answer::watch(&[]).close(),
    });
    let (fake, mut heard) = Heard::of(answers).await;
    heard.services(&["one"]).await;
    // Pauses of 0.8 to 1.6 s, then 1.6 to 3.2 s, and so on.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let asked = fake.asked(SERVICES).len();
    assert!((2..=4).contains(&asked), "{asked} requests");
}

#[tokio::test]
async fn a_server_without_the_service_cidr_api_has_no_ranges_and_no_fault() {
    let fake = Fake::start().await;
    let unknown = Answer::Status(404, "the server could not find the requested resource");
    fake.script(SERVICE_CIDRS, [unknown]);
    let kinds = Answer::kinds("networking.k8s.io", &["Ingress"]);
    fake.script("/apis/networking.k8s.io/v1", [kinds]);
    let mut source = source(&fake);
    source.service_cidrs = true;
    let mut heard = Heard::from_source(source);
    heard.complete().await;
    assert_eq!(heard.names(Kind::ServiceCidr), [""; 0]);
    assert_eq!(heard.faults, []);
}

#[tokio::test(start_paused = true)]
async fn a_kind_of_which_nothing_comes_is_listed_again() {
    let fake = Fake::start().await;
    let silent = Answer::initial(&[service("one", 5)]).ending(End::Alive);
    fake.script(SERVICES, [silent, Answer::initial(&[service("two", 2)])]);
    let source = source(&fake);
    let requests = source.requests();
    let mut heard = Heard::from_source(source);
    heard.complete().await;
    tokio::time::sleep(Duration::from_secs(170)).await;
    assert_eq!(fake.asked(SERVICES).len(), 1);
    tokio::time::sleep(Duration::from_secs(80)).await;
    // As after a restore of etcd, whose versions are older.
    heard.services(&["two"]).await;
    assert_eq!(heard.faults, []);
    let of_services = [("kind", "Service".to_owned())];
    assert_eq!(requests.silences.get_or_create(&of_services).get(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_gives_no_answer_or_only_bad_ones_is_left() {
    let (bad, fine) = (
        || Answer::Status(503, "etcd is away"),
        || Answer::page(&[], None),
    );
    let hangs = fine().after(Duration::from_secs(600));
    let mut answers: [Answer; 13] = std::array::from_fn(|_| bad());
    [answers[4], answers[10], answers[11], answers[12]] = [fine(), fine(), hangs, fine()];
    let fake = Fake::start().await;
    fake.script(SERVICES, answers);
    let client = fake.client().await;
    for _ in 0..13 {
        let request = Request::get(SERVICES).body(Vec::new());
        _ = client.request_text(request.expect("a request")).await;
        // Until then the connection is not free again.
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(fake.requests(), [10, 2, 1]);
}

#[tokio::test]
async fn a_list_that_always_breaks_off_is_asked_for_with_growing_pauses() {
    let list = || Answer::watch(&[("ADDED", service("one", 1))]);
    let broken = |at: usize| list().ending(End::Cut(10 * (at % 2)));
    let (fake, mut heard) = Heard::of::<100>(std::array::from_fn(broken)).await;
    heard.fault().await;
    // Pauses of 0.1 to 0.2 s, then 0.2 to 0.4 s, and so on.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let asked = fake.asked(SERVICES).len();
    assert!((3..=7).contains(&asked), "{asked} requests");
}

#[tokio::test]
async fn an_object_that_cannot_be_read_stays_as_known_and_all_others_go_on() {
    let broken = |version| {
        let mut object = service("two", version);
        object["spec"]["ports"] = json!("none");
        object
    };
    let gone = json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"});
    let (_fake, mut heard) = Heard::of([
        Answer::initial(&[service("one", 1), service("two", 2)]).then(&[
            ("MODIFIED", broken(3)),
            ("ADDED", service("three", 4)),
            ("ERROR", gone),
        ]),
        Answer::initial(&[service("four", 8), broken(9)]),
    ])
    .await;
    heard.services(&["one", "three", "two"]).await;
    heard.services(&["four", "two"]).await;
    assert_eq!(heard.faults, [], "the kind goes on");
}

#[tokio::test]
async fn requests_name_the_node_and_are_counted_by_status() {
    let fake = Fake::start().await;
    fake.script(SERVICES, [Answer::initial(&[service("cart", 1)])]);
    let source = source(&fake);
    let requests = source.requests();
    let mut heard = Heard::from_source(source);
    heard.until("the lists", |heard| heard.listed).await;
    let name = concat!("portolan/", env!("CARGO_PKG_VERSION"), " (node node-a)");
    let client = [name, "Bearer secret"].map(|text| text.parse().ok());
    let mut clients = fake.clients();
    clients.dedup();
    assert_eq!(clients, [client]);
    let mut registry = Registry::default();
    registry.register("rest_client_requests", "", requests.answers.clone());
    let mut text = String::new();
    encode(&mut text, &registry).expect("written");
    let parts = ["code=\"200\"", "method=\"GET\"", "host=\"127.0.0.1:"];
    let has_all = |line: &&str| parts.iter().all(|part| line.contains(part));
    let line = text.lines().find(has_all).expect(&text);
    let count = line.rsplit_once(' ').expect("a value").1.parse::<u32>();
    assert!(count.expect("a number") >= 3, "three kinds: {line}");
}
