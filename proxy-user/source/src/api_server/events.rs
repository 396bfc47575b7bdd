// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Turns reports about objects into Kubernetes events, which `kubectl describe` shows. Every node
//! has the same warnings: an event's name is a hash of its content, so the server keeps one event
//! for all nodes. Started by `api_server`.

use std::{
    fmt::Debug,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use control::{
    causes::chain,
    model::Kind,
    object::ObjectName,
    warnings::{News, Report, Reporter, Warnings},
};
use k8s_openapi::{
    api::{
        core::v1::{Node, ObjectReference, Service},
        discovery::v1::EndpointSlice,
        events::v1::Event,
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{ListParams, PostParams},
};
use serde::de::DeserializeOwned;
use tokio::{sync::mpsc, time::sleep};

/// The most reports that may wait to become events; further ones are only in the log.
const WAITING: usize = 256;

/// The queue of reports that wait to become events.
#[derive(Debug)]
struct Waiting(mpsc::Sender<Report>);

impl Reporter for Waiting {
    fn report(&self, report: Report) {
        // If the queue is full, the report is at least in the log.
        _ = self.0.try_send(report);
    }
}

/// Returns an empty set of warnings, and the queue's end from which its reports are received.
pub(super) fn reported() -> (Warnings, mpsc::Receiver<Report>) {
    let (sender, reports) = mpsc::channel(WAITING);
    (Warnings::reported_to(Arc::new(Waiting(sender))), reports)
}

/// The pause between two events, to spare the API server.
const PAUSE: Duration = Duration::from_millis(200);

const CONTROLLER: &str = "portolan";
/// Type, reason and action of the events. The first is about users' objects, the others are about a
/// node.
const NOT_SERVED: Words = ("Warning", "NotServed", "Serve");
const NOT_FIRST: Words = ("Warning", "ProgramsNotFirst", "Attach");
const HEALTHY: Words = ("Normal", "ServiceProxyHealthy", "Serve");
const UNHEALTHY: Words = ("Warning", "ServiceProxyUnhealthy", "Serve");
type Words = (&'static str, &'static str, &'static str);
// KUBE: the server's limits, in bytes.
const MAX_NOTE: usize = 1024;
const MAX_INSTANCE: usize = 128;
const MAX_NAME: usize = 253;

const CONFLICT: u16 = 409;

/// Creates an event for each report, until the sender is gone.
pub(super) async fn publish(
    client: Client,
    node_name: String,
    mut reports: mpsc::Receiver<Report>,
) {
    let mut failing = false;
    while let Some(report) = reports.recv().await {
        let object = &report.object;
        let name = &object.name;
        let made = match object.kind {
            Kind::Service => {
                let services = Api::<Service>::namespaced(client.clone(), &name.namespace);
                make(&client, services, &node_name, &report).await
            }
            Kind::EndpointSlice => {
                let slices = Api::<EndpointSlice>::namespaced(client.clone(), &name.namespace);
                make(&client, slices, &node_name, &report).await
            }
            Kind::Node => {
                let nodes = Api::<Node>::all(client.clone());
                make(&client, nodes, &node_name, &report).await
            }
            Kind::ServiceCidr => Ok(()),
        };
        match made {
            Ok(()) => failing = false,
            Err(error) if failing => tracing::debug!("event about {object}: {}", chain(&error)),
            Err(error) => {
                failing = true;
                tracing::warn!(
                    "{object}: could not create an event for the warning about it: {}; portolan's role must allow it to create events (events.k8s.io) and to list services, endpointslices and nodes",
                    chain(&error),
                );
            }
        }
        sleep(PAUSE).await;
    }
}

/// Creates an event about an object, unless the object is gone or already has this event.
async fn make<K>(
    client: &Client,
    objects: Api<K>,
    node_name: &str,
    report: &Report,
) -> kube::Result<()>
where
    K: k8s_openapi::Metadata<Ty = ObjectMeta> + DeserializeOwned + Clone + Debug,
{
    // `kubectl describe` finds events by the object's uid, which the agent does not keep. The
    // agent's role only allows to list objects.
    let name: &ObjectName = &report.object.name;
    let only = ListParams::default().fields(&format!("metadata.name={}", name.name));
    let found = objects.list_metadata(&only).await?.items.pop();
    let Some(uid) = found.and_then(|object| object.metadata.uid) else {
        return Ok(());
    };
    // KUBE: events about objects without a namespace are in this namespace.
    let is_namespaced = !name.namespace.is_empty();
    let namespace = if is_namespaced {
        &*name.namespace
    } else {
        "default"
    };
    let regarding = ObjectReference {
        api_version: Some(K::API_VERSION.to_owned()),
        kind: Some(K::KIND.to_owned()),
        name: Some(name.name.to_string()),
        namespace: is_namespaced.then(|| name.namespace.to_string()),
        uid: Some(uid),
        ..ObjectReference::default()
    };
    let event = event(regarding, namespace, node_name, report);
    let events = Api::<Event>::namespaced(client.clone(), namespace);
    match events.create(&PostParams::default(), &event).await {
        Err(kube::Error::Api(status)) if status.code == CONFLICT => Ok(()),
        created => created.map(drop),
    }
}

fn event(regarding: ObjectReference, namespace: &str, node_name: &str, report: &Report) -> Event {
    let now = Timestamp::now();
    let mut hasher = DefaultHasher::new();
    (&regarding.uid, &report.reason).hash(&mut hasher);
    let (kind, why, action) = match (report.news, &regarding.namespace) {
        (News::Warning, Some(_)) => NOT_SERVED,
        (News::Warning, None) => NOT_FIRST,
        (News::Healthy, _) => HEALTHY,
        (News::Unhealthy, _) => UNHEALTHY,
    };
    // If a node becomes unhealthy a second time, it gets a second event.
    if report.news != News::Warning {
        now.as_second().hash(&mut hasher);
    }
    let hash = format!(".{:016x}", hasher.finish());
    let name = regarding.name.as_deref().unwrap_or_default();
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{}{hash}", start(name, MAX_NAME - hash.len()))),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(now)),
        type_: Some(kind.to_owned()),
        reason: Some(why.to_owned()),
        action: Some(action.to_owned()),
        note: Some(start(&report.reason, MAX_NOTE).to_owned()),
        reporting_controller: Some(CONTROLLER.to_owned()),
        reporting_instance: Some(start(node_name, MAX_INSTANCE).to_owned()),
        regarding: Some(regarding),
        ..Event::default()
    }
}

/// Returns the start of a text, at most `limit` bytes.
fn start(text: &str, limit: usize) -> &str {
    text.get(..text.floor_char_boundary(limit)).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_warnings_of_two_nodes_have_one_event_name_within_size_limits() {
        let regarding = |name: &str, uid: &str| ObjectReference {
            name: Some(name.to_owned()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        };
        let name = |event: &Event| event.metadata.name.clone().expect("a name");
        let event = |regarding, namespace, node, reason| {
            event(regarding, namespace, node, &report(News::Warning, reason))
        };
        let first = event(regarding("cart", "1"), "shop", "node-a", "conflict");
        assert_eq!(
            name(&first),
            name(&event(regarding("cart", "1"), "shop", "node-b", "conflict"))
        );
        for other in [
            event(regarding("cart", "2"), "shop", "node-a", "conflict"),
            event(regarding("cart", "1"), "shop", "node-a", "another"),
        ] {
            assert_ne!(name(&first), name(&other));
        }
        let long = event(
            regarding(&"s".repeat(253), "1"),
            "shop",
            &"n".repeat(253),
            &"ü".repeat(700),
        );
        assert_eq!(name(&long).len(), MAX_NAME);
        assert_eq!(long.note.expect("a note").len(), MAX_NOTE);
        assert_eq!(long.reporting_instance.expect("a node").len(), MAX_INSTANCE);
    }

    fn report(news: News, reason: &str) -> Report {
        Report {
            object: control::model::ObjectKey {
                kind: Kind::Node,
                name: ObjectName::new("", "node-a"),
            },
            news,
            reason: reason.to_owned(),
        }
    }

    #[test]
    fn a_healthy_nodes_event_is_normal_and_others_are_warnings() {
        let told = |news| {
            let regarding = ObjectReference {
                name: Some("node-a".to_owned()),
                ..ObjectReference::default()
            };
            let event = event(regarding, "default", "node-a", &report(news, "text"));
            [event.type_, event.reason].map(Option::unwrap_or_default)
        };
        assert_eq!(told(News::Warning), ["Warning", "ProgramsNotFirst"]);
        assert_eq!(told(News::Healthy), ["Normal", "ServiceProxyHealthy"]);
        assert_eq!(told(News::Unhealthy), ["Warning", "ServiceProxyUnhealthy"]);
    }
}
