// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Follows an API server whose scripted answers are slow, repeated, out of order, incomplete or
//! missing. This file tests what is sent when all goes well.

mod events;
mod fake;
mod faults;
mod gateways;
mod lease;
mod publishing;
mod store;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::Duration,
};

use control::{
    change::{Batch, Change, Trigger},
    model::{Converter, Kind},
    object::Warning,
    warnings::Topic,
};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tokio::{sync::mpsc, time::timeout};

use super::{Access, ApiServer, merge::ANNOTATION_TRIGGER};
use crate::{ObjectSource, SourceError};
use fake::{Answer, End, Fake, NODES, SERVICE_CIDRS, SERVICES, SLICES};

const SOON: Duration = Duration::from_secs(5);

fn service(name: &str, version: u32) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": "shop", "resourceVersion": version.to_string()},
        "spec": {"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"], "ports": [{"port": 80}]}
    })
}

fn slice(name: &str, version: u32, trigger: Option<Timestamp>) -> Value {
    let annotations = trigger.map(|time| json!({ANNOTATION_TRIGGER: time.to_string()}));
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": name, "namespace": "shop", "resourceVersion": version.to_string(),
            "labels": {"kubernetes.io/service-name": "cart"}, "annotations": annotations
        },
        "addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"]}], "ports": []
    })
}

fn source(fake: &Fake) -> ApiServer {
    ApiServer::new(fake.access(), Converter::new("node-a"))
}

fn gateway_source(fake: &Fake) -> ApiServer {
    let mut converter = Converter::new("node-a");
    converter.gateways = true;
    ApiServer::new(fake.access(), converter)
}

#[tokio::test]
async fn what_is_missing_is_found_before_the_agent_makes_anything() {
    let absent = "/nonexistent/kubeconfig";
    let file = || Some(PathBuf::from(absent));
    let server = || vec!["https://192.0.2.1:6443".to_owned()];
    for (kubeconfig, masters) in [(file(), vec![]), (file(), server()), (None, server())] {
        let missing = kubeconfig.as_ref().map_or("ca.crt", |_| absent);
        let access = Access::new(kubeconfig, masters).expect("an address");
        let source = ApiServer::new(access, Converter::new("node-a"));
        let error = source.check().await.expect_err("no file");
        assert!(matches!(error, SourceError::Access { .. }));
        assert!(error.to_string().contains(missing), "{error}");
    }
}

/// Follows a server and keeps what was received so far.
struct Heard {
    batches: mpsc::Receiver<Batch>,
    /// The names of the objects that exist by what was received.
    known: BTreeMap<Kind, BTreeSet<String>>,
    listed: bool,
    complete: bool,
    triggers: Vec<Trigger>,
    faults: Vec<Warning>,
}

impl Heard {
    /// Follows a server that answers requests for services in this way.
    async fn of<const N: usize>(answers: [Answer; N]) -> (Fake, Self) {
        let fake = Fake::start().await;
        fake.script(SERVICES, answers);
        let heard = Self::from_source(source(&fake));
        (fake, heard)
    }
    fn from_source(source: ApiServer) -> Self {
        let (sender, batches) = mpsc::channel(16);
        tokio::spawn(source.run(sender));
        Self {
            batches,
            known: BTreeMap::new(),
            listed: false,
            complete: false,
            triggers: Vec::new(),
            faults: Vec::new(),
        }
    }

    /// Receives batches until the condition holds.
    async fn until(&mut self, what: &str, so: impl Fn(&Self) -> bool) {
        while !so(self) {
            let batch = timeout(SOON, self.batches.recv()).await;
            let batch = batch.unwrap_or_else(|_| {
                let Self { known, faults, .. } = self;
                panic!("not heard: {what}; {known:?}, faults {faults:?}")
            });
            self.take(batch.expect("following goes on"));
        }
    }

    /// Receives batches until these services exist, and no others.
    async fn services(&mut self, services: &[&str]) {
        let what = services.join(", ");
        self.until(&what, |heard| heard.has(services)).await;
    }
    /// Receives batches until every list has come.
    async fn complete(&mut self) {
        self.until("all lists", |heard| heard.complete).await;
    }
    /// Receives batches until there is a fault, and returns it.
    async fn fault(&mut self) -> String {
        self.until("a fault", |heard| !heard.faults.is_empty())
            .await;
        self.faults[0].to_string()
    }

    fn take(&mut self, batch: Batch) {
        for change in batch.changes {
            match change {
                Change::Upsert(object) => {
                    let known = self.known.entry(object.kind()).or_default();
                    known.insert(object.name().name.to_string());
                }
                Change::Delete(key) => {
                    let known = self.known.entry(key.kind).or_default();
                    known.remove(&*key.name.name);
                }
            }
        }
        for (topic, warnings) in batch.warnings {
            if topic == Topic::ApiServer {
                self.faults = warnings;
            }
        }
        self.listed |= batch.listed;
        self.complete = batch.complete;
        self.triggers.extend(batch.triggers);
    }

    /// Whether these services exist, and no others.
    fn has(&self, services: &[&str]) -> bool {
        self.names(Kind::Service) == services
    }
    fn names(&self, kind: Kind) -> Vec<&str> {
        let names = self.known.get(&kind).into_iter().flatten();
        names.map(String::as_str).collect()
    }
}

const OF_SERVICES: &str = "fieldSelector=spec.clusterIP%21%3DNone&labelSelector=%21service.kubernetes.io%2Fservice-proxy-name";
const OF_SLICES: &str = "labelSelector=%21service.kubernetes.io%2Fheadless&";

#[tokio::test]
async fn the_source_is_complete_only_after_every_list_and_asks_for_nothing_else() {
    let ranges = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
        "metadata": {"name": "kubernetes", "resourceVersion": "1"}
    });
    for (last, object) in [(SLICES, slice("cart-1", 1, None)), (SERVICE_CIDRS, ranges)] {
        let fake = Fake::start().await;
        fake.script(SERVICES, [Answer::initial(&[service("cart", 1)])]);
        let wait = Duration::from_millis(300);
        fake.script(last, [Answer::initial(&[object]).after(wait)]);
        let mut source = source(&fake);
        source.service_cidrs = last == SERVICE_CIDRS;
        let mut heard = Heard::from_source(source);
        heard.services(&["cart"]).await;
        assert!(!heard.listed && !heard.complete, "{last} have not come");
        heard.complete().await;
        assert!(heard.listed);
        let ranges = usize::from(last == SERVICE_CIDRS);
        assert_eq!(heard.names(Kind::ServiceCidr), &["kubernetes"][..ranges]);
        // Each kind is requested once, with the narrowest selector. The settings name the others.
        for (path, times, selector) in [
            (SERVICES, 1, OF_SERVICES),
            (SLICES, 1, OF_SLICES),
            (NODES, 1, "fieldSelector=metadata.name%3Dnode-a"),
            (SERVICE_CIDRS, ranges, ""),
            ("/apis/gateway.networking.k8s.io/v1", 0, ""),
            ("/apis/gateway.networking.k8s.io/v1/gateways", 0, ""),
            ("/api/v1/namespaces", 0, ""),
        ] {
            let asked = fake.asked(path);
            assert_eq!(asked.len(), times, "{path}: {asked:?}");
            assert!(asked.iter().all(|one| one.contains(selector)), "{asked:?}");
        }
    }
}

#[tokio::test]
async fn services_are_not_selected_by_a_field_that_the_server_does_not_know() {
    let fake = Fake::start().await;
    let refusal = Answer::Status(400, "\"spec.clusterIP\" is not a known field selector");
    let answers = [refusal, Answer::initial(&[service("cart", 1)])];
    fake.script(SERVICES, answers);
    let mut heard = Heard::from_source(source(&fake));
    heard.services(&["cart"]).await;
    let asked = fake.asked(SERVICES);
    assert!(!asked[1].contains("fieldSelector"), "{asked:?}");
}

#[tokio::test]
async fn lists_are_read_in_pages_if_the_server_does_not_stream_them() {
    let refusal = Answer::Status(422, "sendInitialEvents: Forbidden: the feature is disabled");
    let (fake, mut heard) = Heard::of([
        refusal,
        Answer::page(&[service("one", 1)], Some("next")),
        Answer::page(&[service("two", 2)], None),
        Answer::watch(&[("ADDED", service("three", 3))]),
    ])
    .await;
    heard.complete().await;
    heard.services(&["one", "three", "two"]).await;
    let asked = fake.asked(SERVICES);
    let is_more = |at: usize| asked[at].contains("continue=");
    assert!(!is_more(1), "{asked:?}");
    assert!(asked[2].contains("continue=next"), "{asked:?}");
    assert!(asked[3].contains("resourceVersion=2"), "{asked:?}");
    assert_eq!(heard.faults, []);
}

#[tokio::test]
async fn a_compressed_watch_is_read_event_by_event() {
    let watch = Answer::initial(&[service("one", 5)]);
    let watch = watch.then(&[("ADDED", service("two", 6)), ("DELETED", service("one", 7))]);
    let (fake, mut heard) = Heard::of([watch.ending(End::Zipped)]).await;
    // The watch stays open: nothing waits for its end.
    heard.complete().await;
    heard.services(&["two"]).await;
    assert_eq!(fake.asked(SERVICES).len(), 1);
}

#[tokio::test]
async fn watch_events_repeated_out_of_order_or_of_unknown_objects_are_harmless() {
    let (_fake, mut heard) = Heard::of([Answer::initial(&[service("one", 5)]).then(&[
        ("ADDED", service("two", 6)),
        ("ADDED", service("two", 6)),
        ("DELETED", service("never-seen", 7)),
        ("MODIFIED", service("three", 8)),
        ("DELETED", service("one", 9)),
        ("DELETED", service("one", 9)),
        ("ADDED", service("last", 10)),
    ])])
    .await;
    let left = ["last", "three", "two"];
    heard.services(&left).await;
}

#[tokio::test]
async fn endpoint_change_times_are_sent_only_for_changes_after_the_start() {
    let fake = Fake::start().await;
    let now = Timestamp::now();
    let [before, after] = [-60, 60].map(|seconds| now + SignedDuration::from_secs(seconds));
    let changes = [
        ("MODIFIED", slice("one", 2, Some(before))),
        ("MODIFIED", slice("one", 3, Some(after))),
    ];
    let list = Answer::initial(&[slice("one", 1, Some(after))]);
    fake.script(SLICES, [list.then(&changes)]);
    let mut heard = Heard::from_source(source(&fake));
    let is_sent = |heard: &Heard| !heard.triggers.is_empty();
    heard.until("the trigger", is_sent).await;
    let (time, v6) = (after, false);
    assert_eq!(heard.triggers, [Trigger { time, v6 }]);
}
