// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of who writes: the process with the lease, and no other. Time is paused: it goes on only
//! while nobody has anything to do.

use axum::http::Method;
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use super::{
    super::controller::lease::Election,
    Fake,
    publishing::{Lines, SECOND},
    store::Fault,
};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
const LEASE: &str =
    "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/portolan-controller";

async fn candidate(fake: &Fake, name: &str) -> Election {
    Election::new(&fake.client().await, "kube-system", name)
}

#[tokio::test(start_paused = true)]
async fn without_the_right_to_the_lease_it_is_said_once_and_asked_again() {
    let (lines, _guard) = Lines::start();
    let fake = Fake::start().await;
    let refused = Fault::Refused(403, "leases is forbidden");
    fake.set_fault(Method::POST, LEASES, Some(refused));
    let mut one = candidate(&fake, "a").await;
    assert!(timeout(60 * SECOND, one.win()).await.is_err());
    let warnings = lines.warnings();
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    assert!(warnings[0].contains("docs/security.md"), "{warnings:?}");
    fake.set_fault(Method::POST, LEASES, None);
    let won = timeout(5 * SECOND, one.win()).await;
    won.expect("the lease");
}

#[tokio::test(start_paused = true)]
async fn of_two_one_has_the_lease_until_it_stops_and_then_the_other() {
    let fake = Fake::start().await;
    let (mut one, mut other) = (candidate(&fake, "a").await, candidate(&fake, "b").await);
    one.win().await;
    let both = async { tokio::join!(one.keep(), other.win()) };
    assert!(timeout(600 * SECOND, both).await.is_err());
    let renewed = fake.written(LEASES).len();
    assert!((110..=125).contains(&renewed), "{renewed} in 600 s");
    one.release().await;
    let won = timeout(5 * SECOND, other.win()).await;
    won.expect("the lease, at once");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_hangs_keeps_nobody_from_the_lease() {
    let fake = Fake::start().await;
    let mut one = candidate(&fake, "a").await;
    fake.set_fault(Method::GET, LEASE, Some(Fault::Delayed(600 * SECOND)));
    let mend = async {
        sleep(5 * SECOND).await;
        fake.set_fault(Method::GET, LEASE, None);
    };
    let (won, ()) = tokio::join!(timeout(20 * SECOND, one.win()), mend);
    won.expect("the lease");
}

#[tokio::test(start_paused = true)]
async fn a_holder_stops_ten_seconds_after_a_renewal_and_at_once_if_the_lease_is_anothers() {
    let fake = Fake::start().await;
    let mut one = candidate(&fake, "a").await;
    for fault in [
        Fault::Refused(500, "etcd is away"),
        Fault::Delayed(600 * SECOND),
    ] {
        one.win().await;
        let since = Instant::now();
        fake.set_fault(Method::PUT, LEASE, Some(fault));
        one.keep().await;
        let held = since.elapsed();
        assert!((9 * SECOND..11 * SECOND).contains(&held), "{held:?}");
        fake.set_fault(Method::PUT, LEASE, None);
    }
    one.win().await;
    let spec = json!({"holderIdentity": "b", "leaseDurationSeconds": 15});
    let metadata = json!({"name": "portolan-controller", "namespace": "kube-system"});
    fake.put(LEASE, json!({"metadata": metadata, "spec": spec}));
    let since = Instant::now();
    one.keep().await;
    assert!(since.elapsed() < 6 * SECOND, "it looks when it renews it");
    one.win().await;
    let since = since.elapsed();
    assert!(since >= 15 * SECOND, "it has run out: {since:?}");
}
