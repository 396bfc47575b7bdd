// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of who writes: the agent with the lease, and no other.

use axum::http::Method;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{
    super::{
        Fake, gateway_source,
        store::{Fault, Written},
    },
    Board, GATEWAYS, LEASE, LEASES, Lines, SECOND, SOON, agent, create, holder, messages, path,
    status, want, with_gateway,
};
use crate::ObjectSource;

/// Has another agent take the lease, or renew it.
fn take_lease(fake: &Fake, holder: &str) {
    let spec = json!({"holderIdentity": holder, "leaseDurationSeconds": 15});
    let metadata = json!({"name": "portolan-gateway-api", "namespace": "kube-system"});
    fake.put(LEASE, json!({"metadata": metadata, "spec": spec}));
}

/// Has an agent want something else each second; returns the statuses written since the call.
async fn want_more(
    fake: &Fake,
    board: &Board,
    seconds: u32,
    mut each: impl FnMut(),
) -> Vec<Written> {
    let before = fake.written(GATEWAYS).len();
    for number in 0..seconds {
        each();
        want(board, "edge", &number.to_string());
        sleep(SECOND).await;
    }
    fake.written(GATEWAYS).split_off(before)
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_asked_for_when_something_is_wanted_and_without_the_right_it_is_said_once() {
    let (lines, _guard) = Lines::start();
    let fake = with_gateway().await;
    let refused = Fault::Refused(403, "leases is forbidden");
    fake.set_fault(Method::POST, LEASES, Some(refused));
    let board = agent(&fake, "node-a").await;
    sleep(600 * SECOND).await;
    assert_eq!(fake.written("/").len(), 0);
    want(&*board, "edge", "one");
    sleep(600 * SECOND).await;
    assert_eq!(fake.written(GATEWAYS).len(), 0);
    let tries = fake.written(LEASES).len();
    assert!((10..30).contains(&tries), "{tries}");
    let warnings = lines.warnings();
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    assert!(warnings[0].contains("coordination.k8s.io"), "{warnings:?}");
    fake.set_fault(Method::POST, LEASES, None);
    sleep(60 * SECOND + SOON).await;
    assert_eq!(messages(&fake.written(GATEWAYS)), [("one", 200)]);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_cannot_renew_the_lease_writes_nothing_after_ten_seconds() {
    let fake = with_gateway().await;
    let board = agent(&fake, "node-a").await;
    assert!(want_more(&fake, &board, 20, || {}).await.len() > 12);
    let renewed = fake.written(LEASES).last().expect("a renewal").at;
    let away = Fault::Refused(500, "etcd is away");
    fake.set_fault(Method::PUT, LEASE, Some(away));
    let meanwhile = want_more(&fake, &board, 60, || {}).await;
    let last = meanwhile.last().map(|one| one.at - renewed);
    assert!(last < Some(10 * SECOND), "{last:?}");
    fake.set_fault(Method::PUT, LEASE, None);
    assert!(!want_more(&fake, &board, 75, || {}).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_loses_the_lease_writes_nothing_not_even_late_until_the_holder_is_gone() {
    let (lines, _guard) = Lines::start();
    let fake = with_gateway().await;
    create(&fake, "slow");
    let wait = Fault::Delayed(30 * SECOND);
    fake.set_fault(Method::GET, &path("slow"), Some(wait));
    let board = agent(&fake, "node-a").await;
    want(&*board, "slow", "late");
    // It holds the lease, and reads. One slow answer keeps it neither from renewing the lease nor,
    // for long, from writing other objects.
    let others = want_more(&fake, &board, 60, || {}).await;
    assert!(others.len() > 20, "{}", others.len());
    let renewals = fake.written(LEASES);
    for pair in renewals.windows(2) {
        let pause = pair[1].at - pair[0].at;
        assert!(pause <= 10 * SECOND, "{pause:?}");
    }
    take_lease(&fake, "node-b");
    // It finds out when it renews the lease.
    want_more(&fake, &board, 5, || {}).await;
    let meanwhile = want_more(&fake, &board, 60, || take_lease(&fake, "node-b")).await;
    assert_eq!(meanwhile.len(), 0, "{meanwhile:?}");
    assert_eq!(fake.written(&path("slow")).len(), 0);
    let warnings = lines.warnings();
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    assert!(warnings[0].contains("Gateway shop/slow"), "{warnings:?}");
    let since = Instant::now();
    let again = want_more(&fake, &board, 90, || {}).await;
    let first = again.first().expect("it writes again").at - since;
    assert!(first >= 14 * SECOND, "{first:?}");
    assert_eq!(holder(&fake), "node-a");
}

#[tokio::test(start_paused = true)]
async fn agents_ask_for_the_lease_ever_more_slowly_about_what_nobody_can_write() {
    let fake = with_gateway().await;
    let refused = Fault::Refused(403, "a quota");
    fake.set_fault(Method::PATCH, &status("edge"), Some(refused));
    let first = agent(&fake, "node-a").await;
    want(&*first, "edge", "one");
    sleep(SOON).await;
    let second = agent(&fake, "node-b").await;
    want(&*second, "edge", "one");
    sleep(600 * SECOND).await;
    let asked = fake.read(LEASE);
    // The first renews it every 5 s, and reads it before.
    let renewals = fake.written(LEASES).len();
    let others = asked - renewals;
    assert!((10..30).contains(&others), "{others}");
}

#[tokio::test(start_paused = true)]
async fn of_two_agents_one_writes_and_the_other_does_when_that_one_has_stopped() {
    let fake = with_gateway().await;
    let source = gateway_source(&fake).with_writing();
    let first = source.writer().expect("it writes");
    let (sender, batches) = tokio::sync::mpsc::channel(16);
    let running = tokio::spawn(source.run(sender));
    want(&*first, "edge", "first");
    sleep(SOON).await;
    let second = agent(&fake, "node-b").await;
    for number in 0..60 {
        want(&*first, "edge", &format!("first {number}"));
        want(&*second, "edge", &format!("second {number}"));
        sleep(SECOND).await;
    }
    let written = fake.written(GATEWAYS);
    assert_eq!(written.len(), 61);
    let all_of = |written: &[Written], who: &str| {
        let is_right = |(text, code): &(&str, u16)| text.starts_with(who) && *code == 200;
        messages(written).iter().all(is_right)
    };
    assert!(all_of(&written, "first"), "{:?}", messages(&written));
    assert_eq!(holder(&fake), "node-a");
    // It stops, and gives the lease up.
    drop(batches);
    running.await.expect("it ends").expect("nobody receives");
    assert_eq!(holder(&fake), "");
    sleep(60 * SECOND + SOON).await;
    let later = fake.written(GATEWAYS).split_off(written.len());
    assert!(!later.is_empty());
    assert!(all_of(&later, "second"), "{:?}", messages(&later));
    assert_eq!(holder(&fake), "node-b");
}
