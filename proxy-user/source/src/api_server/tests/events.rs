// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests that warnings about objects become events.

use std::time::Duration;

use control::{
    object::{ObjectName, Warning},
    warnings::Topic,
};
use tokio::time::timeout;

use super::{
    Heard, SOON,
    fake::{Answer, Fake},
    service, source,
};

#[tokio::test]
async fn repeated_reports_create_only_one_kubernetes_event() {
    const FOUND: &str = "/api/v1/namespaces/shop/services";
    let fake = Fake::start().await;
    let mut object = service("cart", 1);
    object["metadata"]["uid"] = "11-22".into();
    object["kind"] = "PartialObjectMetadata".into();
    object["apiVersion"] = "meta.k8s.io/v1".into();
    let found = || Answer::page(std::slice::from_ref(&object), None);
    fake.script(FOUND, [found(), Answer::page(&[], None), found(), found()]);
    let (source, warnings) = source(&fake).with_events();
    let _heard = Heard::from_source(source);
    let warning = |reason: &str| Warning {
        object: "Service shop/cart".into(),
        reason: reason.to_owned(),
    };
    // An object that is gone gets no event. If another node created the event already, it is not
    // repeated.
    for reason in ["conflict", "gone", "conflict", "another"] {
        let cart = Topic::Plan(ObjectName::new("shop", "cart"));
        warnings.replace(cart, vec![warning(reason)]);
    }
    let all = timeout(SOON, async {
        while fake.posted().len() < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    all.await.expect("both events");
    let events = fake.posted();
    let notes: Vec<_> = events.iter().map(|event| &event["note"]).collect();
    assert_eq!(notes, ["conflict", "another"]);
    let event = &events[0];
    assert_eq!(event["type"], "Warning");
    assert_eq!(event["regarding"]["uid"], "11-22");
    assert_eq!(event["regarding"]["kind"], "Service");
    assert_eq!(event["metadata"]["namespace"], "shop");
    assert_eq!(event["reportingInstance"], "node-a");
    assert!(fake.asked(FOUND)[0].contains("metadata.name%3Dcart"));
}
