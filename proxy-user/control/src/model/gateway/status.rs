// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Our part of an object's status, in one form: what others wrote is left out, as are times. So a
//! status that is wanted can be compared with one that an object has.

use serde_json::{Value, json};

use super::CONTROLLER;
use crate::{model::Kind, object::hash};

/// The conditions that this controller writes; those of other types are others'.
const CONDITIONS: [&str; 4] = ["Accepted", "Programmed", "ResolvedRefs", "Conflicted"];

/// Returns a hash of our part of a status, the same for every order of its lists.
pub fn digest(kind: Kind, status: &Value) -> u64 {
    hash(ours(kind, status).to_string())
}

/// Returns our part of a status.
fn ours(kind: Kind, status: &Value) -> Value {
    match kind {
        Kind::GatewayClass => json!([
            conditions(status),
            sorted(list(status, "supportedFeatures").map(|one| one["name"].clone())),
        ]),
        Kind::Gateway => {
            let listeners = list(status, "listeners").map(|listener| {
                let kinds = list(listener, "supportedKinds");
                let kinds = sorted(kinds.map(|one| fields(one, &["group", "kind"])));
                json!([
                    listener["name"],
                    listener["attachedRoutes"],
                    kinds,
                    conditions(listener)
                ])
            });
            let addresses = list(status, "addresses").map(|one| fields(one, &["type", "value"]));
            json!([conditions(status), sorted(addresses), sorted(listeners)])
        }
        Kind::TcpRoute | Kind::UdpRoute => {
            let parents = list(status, "parents").filter(|parent| is_ours(parent));
            sorted(parents.map(|parent| json!([parent_ref(parent), conditions(parent)])))
        }
        _ => Value::Null,
    }
}

/// Whether an entry of a route's status is this controller's.
pub fn is_ours(parent: &Value) -> bool {
    parent["controllerName"] == CONTROLLER
}

/// Whether a condition is of a type that this controller writes.
pub fn is_our_condition(condition: &Value) -> bool {
    CONDITIONS.iter().any(|ours| condition["type"] == *ours)
}

/// Returns what a parent of a route's status refers to, in one form.
pub fn parent_ref(parent: &Value) -> Value {
    let all = ["group", "kind", "namespace", "name", "sectionName", "port"];
    fields(&parent["parentRef"], &all)
}

/// Returns the elements of a list in a status.
pub fn list<'a>(status: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    status[field].as_array().into_iter().flatten()
}

fn conditions(of: &Value) -> Value {
    let own = list(of, "conditions").filter(|one| is_our_condition(one));
    let all = ["type", "status", "reason", "message", "observedGeneration"];
    sorted(own.map(|condition| fields(condition, &all)))
}

fn fields(of: &Value, names: &[&str]) -> Value {
    names.iter().map(|name| of[*name].clone()).collect()
}

fn sorted(values: impl Iterator<Item = Value>) -> Value {
    let mut values: Vec<_> = values.collect();
    values.sort_by_cached_key(Value::to_string);
    Value::Array(values)
}

/// Returns a status with our part as wanted: what others wrote stays, and a condition keeps its
/// time while its status is the same. `now` is a time of RFC 3339.
pub fn merged(kind: Kind, current: &Value, wanted: &Value, now: &str) -> Value {
    let mut status = wanted.clone();
    match kind {
        Kind::TcpRoute | Kind::UdpRoute => {
            let own = list(wanted, "parents").map(|parent| {
                let mut ours = list(current, "parents").filter(|one| is_ours(one));
                let before = ours.find(|one| parent_ref(one) == parent_ref(parent));
                with_times(before.unwrap_or(&Value::Null), parent, now)
            });
            let others = list(current, "parents").filter(|one| !is_ours(one));
            status["parents"] = others.cloned().chain(own).collect();
        }
        _ => {
            status = with_times(current, wanted, now);
            if kind == Kind::Gateway {
                let listeners = list(wanted, "listeners").map(|listener| {
                    let mut all = list(current, "listeners");
                    let before = all.find(|one| one["name"] == listener["name"]);
                    with_times(before.unwrap_or(&Value::Null), listener, now)
                });
                status["listeners"] = listeners.collect();
            }
        }
    }
    status
}

/// Returns `wanted` with others' conditions and with times.
fn with_times(before: &Value, wanted: &Value, now: &str) -> Value {
    let same = |one: &Value, other: &Value| one["type"] == other["type"];
    let own = list(wanted, "conditions").map(|condition| {
        let mut condition = condition.clone();
        let mut all = list(before, "conditions");
        let last = all.find(|one| same(one, &condition) && one["status"] == condition["status"]);
        let time = last.map(|last| last["lastTransitionTime"].clone());
        condition["lastTransitionTime"] = time.filter(Value::is_string).unwrap_or(json!(now));
        condition
    });
    let others = list(before, "conditions").filter(|one| !is_our_condition(one));
    let mut status = wanted.clone();
    status["conditions"] = others.cloned().chain(own).collect();
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(kind: &str, holds: &str, time: Option<&str>) -> Value {
        json!({"type": kind, "status": holds, "reason": "R", "message": "", "lastTransitionTime": time})
    }

    #[test]
    fn others_entries_stay_and_times_change_with_the_status_of_a_condition() {
        let other = json!({"parentRef": {"name": "x"}, "controllerName": "example.org/other"});
        let parent = |conditions: Value| json!({"parentRef": {"name": "edge"}, "controllerName": CONTROLLER, "conditions": conditions});
        let stale = json!({"parentRef": {"name": "gone"}, "controllerName": CONTROLLER});
        let before = parent(json!([
            condition("Foreign", "True", Some("t0")),
            condition("Accepted", "True", Some("t1")),
            condition("ResolvedRefs", "False", Some("t1")),
        ]));
        let current = json!({"parents": [before, other, stale]});
        let wanted = json!({"parents": [parent(json!([
            condition("Accepted", "True", None),
            condition("ResolvedRefs", "True", None),
        ]))]});
        let expected = parent(json!([
            condition("Foreign", "True", Some("t0")),
            condition("Accepted", "True", Some("t1")),
            condition("ResolvedRefs", "True", Some("now")),
        ]));
        let merged = merged(Kind::TcpRoute, &current, &wanted, "now");
        assert_eq!(merged, json!({"parents": [other, expected]}));
    }

    #[test]
    fn listeners_keep_their_times_by_name() {
        let listeners = |all: [(&str, Option<&str>); 2]| {
            let each = all.map(|(name, time)| json!({"name": name, "conditions": [condition("Accepted", "True", time)]}));
            json!({"conditions": [], "listeners": each})
        };
        let current = listeners([("a", Some("t1")), ("b", Some("t1"))]);
        let wanted = listeners([("b", None), ("c", None)]);
        let expected = listeners([("b", Some("t1")), ("c", Some("now"))]);
        assert_eq!(merged(Kind::Gateway, &current, &wanted, "now"), expected);
    }
}
