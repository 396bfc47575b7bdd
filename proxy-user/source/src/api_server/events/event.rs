// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The event about a report, as plain data. Called by `events`.

use control::{
    object::hash,
    warnings::{News, Report},
};
use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};

use crate::api_server::resource;

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

/// Returns the namespace of the event about a report. KUBE: events about objects without a
/// namespace are in "default".
pub(super) fn namespace(report: &Report) -> &str {
    if report.object.kind.is_namespaced() {
        &report.object.name.namespace
    } else {
        "default"
    }
}

/// Returns the name of the event about a report, which is the same on every node and after a
/// restart. An object made anew has another uid, so it gets an event of its own.
pub(super) fn name(report: &Report) -> String {
    let about = (report.uid_hash, &report.reason);
    let hash = match report.news {
        News::Warning => hash(about),
        // If a node becomes unhealthy a second time, it gets a second event.
        _ => hash((about, Timestamp::now().as_second())),
    };
    let hash = format!(".{hash:016x}");
    let object = start(&report.object.name.name, MAX_NAME - hash.len());
    format!("{object}{hash}")
}

/// Returns the event about a report on an object with this uid.
pub(super) fn event(uid: String, node_name: &str, report: &Report) -> Event {
    let object = &report.object;
    let resource = resource(object.kind);
    let is_namespaced = object.kind.is_namespaced();
    let (kind, why, action) = match report.news {
        News::Warning if is_namespaced => NOT_SERVED,
        News::Warning => NOT_FIRST,
        News::Healthy => HEALTHY,
        News::Unhealthy => UNHEALTHY,
    };
    Event {
        metadata: ObjectMeta {
            name: Some(name(report)),
            namespace: Some(namespace(report).to_owned()),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(Timestamp::now())),
        type_: Some(kind.to_owned()),
        reason: Some(why.to_owned()),
        action: Some(action.to_owned()),
        note: Some(start(&report.reason, MAX_NOTE).to_owned()),
        reporting_controller: Some(CONTROLLER.to_owned()),
        reporting_instance: Some(start(node_name, MAX_INSTANCE).to_owned()),
        regarding: Some(ObjectReference {
            api_version: Some(resource.api_version),
            kind: Some(resource.kind),
            name: Some(object.name.name.to_string()),
            namespace: is_namespaced.then(|| object.name.namespace.to_string()),
            uid: Some(uid),
            ..ObjectReference::default()
        }),
        ..Event::default()
    }
}

/// Returns the start of a text, at most `limit` bytes.
fn start(text: &str, limit: usize) -> &str {
    text.get(..text.floor_char_boundary(limit)).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use control::model::{Kind, ObjectKey};

    use super::*;

    fn report(object: &str, uid_hash: u64, reason: &str) -> Report {
        Report {
            object: ObjectKey::new(Kind::Service, "shop", object),
            uid_hash,
            news: News::Warning,
            reason: reason.to_owned(),
        }
    }

    #[test]
    fn an_event_has_another_name_for_another_object_and_another_reason() {
        let first = name(&report("cart", 1, "conflict"));
        assert_eq!(first, name(&report("cart", 1, "conflict")));
        for other in [
            report("cart", 2, "conflict"),
            report("cart", 1, "another"),
            report("till", 1, "conflict"),
        ] {
            assert_ne!(first, name(&other));
        }
    }

    #[test]
    fn long_texts_are_cut_to_the_servers_limits() {
        let long = report(&"s".repeat(253), 1, &"ü".repeat(700));
        let event = event("1".to_owned(), &"n".repeat(253), &long);
        assert_eq!(event.metadata.name.expect("a name").len(), MAX_NAME);
        assert_eq!(event.note.expect("a note").len(), MAX_NOTE);
        let instance = event.reporting_instance.expect("a node");
        assert_eq!(instance.len(), MAX_INSTANCE);
    }

    #[test]
    fn a_healthy_nodes_event_is_normal_and_others_are_warnings() {
        let told = |news| {
            let about = Report {
                object: ObjectKey::new(Kind::Node, "", "node-a"),
                news,
                ..report("node-a", 0, "text")
            };
            let event = event("1".to_owned(), "node-a", &about);
            assert_eq!(event.metadata.namespace.as_deref(), Some("default"));
            [event.type_, event.reason].map(Option::unwrap_or_default)
        };
        assert_eq!(told(News::Warning), ["Warning", "ProgramsNotFirst"]);
        assert_eq!(told(News::Healthy), ["Normal", "ServiceProxyHealthy"]);
        assert_eq!(told(News::Unhealthy), ["Warning", "ServiceProxyUnhealthy"]);
    }
}
