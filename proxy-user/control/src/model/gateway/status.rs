// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Our part of an object's status, in one form: what others wrote is left out, as are times. So a
//! status that is wanted can be compared with one that an object has.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::{Value, json};

use super::CONTROLLER;
use crate::model::Kind;

/// The conditions that this controller writes; those of other types are others'.
const CONDITIONS: [&str; 4] = ["Accepted", "Programmed", "ResolvedRefs", "Conflicted"];

/// Returns a hash of our part of a status, the same for every order of its lists.
pub fn digest(kind: Kind, status: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    ours(kind, status).to_string().hash(&mut hasher);
    hasher.finish()
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
