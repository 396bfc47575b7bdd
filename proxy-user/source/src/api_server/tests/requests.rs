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
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(fake.agents(), [format!("portolan/{version} (node node-a)")]);
    let mut registry = Registry::default();
    registry.register("rest_client_requests", "", requests.answers.clone());
    let mut text = String::new();
    encode(&mut text, &registry).expect("written");
    let mut lines = text.lines().filter(|line| line.contains("code=\"200\""));
    let line = lines.next().unwrap_or_else(|| panic!("{text}"));
    assert!(
        line.contains("method=\"GET\"") && line.contains("host=\"127.0.0.1:"),
        "{line}"
    );
    let (_, count) = line.rsplit_once(' ').expect("a count");
    assert!(
        count.parse::<u32>().expect("a number") >= 3,
        "three kinds: {line}"
    );
}
