// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests that requests to the API server are counted.

use prometheus_client::{encoding::text::encode, registry::Registry};

use super::{Answer, Fake, Heard, SERVICES, service, source};
use crate::ObjectSource;

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
    assert_eq!(fake.clients(), [client]);
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
