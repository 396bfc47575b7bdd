// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes what is wanted to the API server, several objects at a time, and tries again what could
//! not be written. Started by `controller` while it has the lease.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use control::{
    gateway::Write,
    model::{
        ObjectKey,
        gateway::{
            is_made,
            status::{list, merged},
        },
    },
};
use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, Preconditions, PropagationPolicy},
    core::DynamicObject,
};
use serde_json::{Value, json};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{sleep, timeout},
};

use super::report;
use crate::api_server::objects;

/// How many objects are written at a time.
const AT_ONCE: usize = 8;
/// The longest time that one write may take.
const WRITE: Duration = Duration::from_secs(5);
/// The pauses before an object is tried again.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LAST_PAUSE: Duration = Duration::from_secs(60);

const NOT_FOUND: u16 = 404;
const CONFLICT: u16 = 409;
/// KUBE: why nothing can be created in a namespace that is being deleted.
const ENDING: &str = "NamespaceTerminating";
/// KUBE: who has set the fields of an object.
const MANAGER: &str = "portolan";

/// An object, and what is to be written about it from now on; None: nothing.
pub(in crate::api_server) type News = (ObjectKey, Option<Write>);

/// Writes what is wanted, until nobody is there who wants anything.
pub(in crate::api_server) async fn publish(
    client: Client,
    mut news: mpsc::UnboundedReceiver<News>,
) {
    let mut publisher = Publisher::default();
    loop {
        publisher.begin(&client);
        tokio::select! {
            wanted = news.recv() => match wanted {
                Some((object, write)) => publisher.set(object, write),
                None => return,
            },
            Some(Ok((object, result))) = publisher.attempts.join_next() => {
                publisher.note(object, result);
            }
        }
    }
}

/// What is wanted, and how far it is.
#[derive(Default)]
struct Publisher {
    wanted: BTreeMap<ObjectKey, Write>,
    /// Those that have not been tried since they were last set.
    untried: BTreeSet<ObjectKey>,
    /// Those that are being written, and those that could not be and wait, whatever is wanted.
    busy: BTreeSet<ObjectKey>,
    /// How many are being written.
    writing: usize,
    /// How often in a row an object could not be written.
    failures: HashMap<ObjectKey, u32>,
    /// Whether the last attempt failed.
    is_failing: bool,
    /// Writes, each with its result, and pauses without one.
    attempts: JoinSet<(ObjectKey, Option<kube::Result<()>>)>,
}

impl Publisher {
    fn set(&mut self, object: ObjectKey, write: Option<Write>) {
        if let Some(write) = write {
            self.untried.insert(object.clone());
            self.wanted.insert(object, write);
        } else {
            self.untried.remove(&object);
            self.failures.remove(&object);
            self.wanted.remove(&object);
        }
    }

    /// Begins to write what has not been tried.
    fn begin(&mut self, client: &Client) {
        while self.writing < AT_ONCE
            && let Some(object) = self.untried.difference(&self.busy).next().cloned()
            && let Some(write) = self.wanted.get(&object).cloned()
        {
            self.untried.remove(&object);
            self.busy.insert(object.clone());
            self.writing += 1;
            let client = client.clone();
            self.attempts.spawn(async move {
                let written = timeout(WRITE, written(&client, &object, &write)).await;
                let written = written.unwrap_or_else(|late| Err(kube::Error::Service(late.into())));
                (object, Some(written))
            });
        }
    }

    /// Notes that a pause is over, or whether an object was written; one that was not is tried
    /// again after a pause.
    fn note(&mut self, object: ObjectKey, result: Option<kube::Result<()>>) {
        self.writing -= usize::from(result.is_some());
        match result {
            Some(Err(error)) if self.wanted.contains_key(&object) => {
                let failures = self.failures.entry(object.clone()).or_default();
                let is_first = *failures == 0 && !self.is_failing;
                let pause = FIRST_PAUSE * 2_u32.saturating_pow((*failures).min(10));
                *failures += 1;
                if !is_by_others(&error) {
                    report(&format!("write about {object}"), &error, is_first);
                    self.is_failing = true;
                }
                self.attempts.spawn(async move {
                    sleep(pause.min(LAST_PAUSE)).await;
                    (object, None)
                });
            }
            Some(_) => {
                self.busy.remove(&object);
                self.failures.remove(&object);
                self.is_failing = false;
            }
            None => {
                self.busy.remove(&object);
                if self.wanted.contains_key(&object) {
                    self.untried.insert(object);
                }
            }
        }
    }
}

async fn written(client: &Client, object: &ObjectKey, write: &Write) -> kube::Result<()> {
    let api = objects(client, object);
    match write {
        Write::Status(status) => write_status(&api, object, status).await,
        Write::Apply(wanted) => apply(&api, object, wanted).await,
        Write::Delete => delete(&api, object).await,
    }
}

async fn apply(api: &Api<DynamicObject>, object: &ObjectKey, wanted: &Value) -> kube::Result<()> {
    let name = &object.name.name;
    let found = api.get_opt(name).await?;
    if let Some(found) = found {
        if !is_made(object.kind, &found.metadata) {
            let why =
                "there is one of this name that was not made for a Gateway; rename or delete it";
            return Err(kube::Error::Service(why.into()));
        }
        if has_others_ports(&found.data, wanted) {
            // KUBE: ports of the same name keep their node ports.
            let patch = Patch::Merge(json!({
                "metadata": {"resourceVersion": found.metadata.resource_version},
                "spec": {"ports": wanted["spec"]["ports"]},
            }));
            api.patch(name, &PatchParams::apply(MANAGER), &patch)
                .await?;
        }
    }
    let how = PatchParams::apply(MANAGER).force();
    api.patch(name, &how, &Patch::Apply(wanted)).await.map(drop)
}

/// Whether a Service has ports that are not wanted: those that somebody has added, or given another
/// number, stay when the wanted ones are applied.
fn has_others_ports(found: &Value, wanted: &Value) -> bool {
    let is_same = |one: &Value, other: &Value| {
        one["port"] == other["port"] && one["protocol"] == other["protocol"]
    };
    let mut found = list(&found["spec"], "ports");
    found.any(|one| !list(&wanted["spec"], "ports").any(|other| is_same(one, other)))
}

async fn delete(api: &Api<DynamicObject>, object: &ObjectKey) -> kube::Result<()> {
    let name = &object.name.name;
    let found = api.get_opt(name).await?;
    let Some(found) = found.filter(|found| is_made(object.kind, &found.metadata)) else {
        return Ok(());
    };
    let how = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Background),
        preconditions: Some(Preconditions {
            resource_version: found.metadata.resource_version,
            uid: found.metadata.uid,
        }),
        ..DeleteParams::default()
    };
    unless_gone(api.delete(name, &how).await)
}

/// Returns the outcome of a request; that an object is gone is no failure.
fn unless_gone<T>(outcome: kube::Result<T>) -> kube::Result<()> {
    match outcome {
        Err(kube::Error::Api(status)) if status.code == NOT_FOUND => Ok(()),
        outcome => outcome.map(drop),
    }
}

/// Writes our part of an object's status, unless it is there already.
async fn write_status(
    api: &Api<DynamicObject>,
    object: &ObjectKey,
    wanted: &Value,
) -> kube::Result<()> {
    let name = &object.name.name;
    // If it is gone, the watch will say so.
    let Some(current) = api.get_opt(name).await? else {
        return Ok(());
    };
    // What is wanted was made of an older state of the object; the watch will bring the newer one.
    let made_of = observed(wanted);
    if made_of.is_some() && made_of < current.metadata.generation {
        return Ok(());
    }
    let now = Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default();
    let before = &current.data["status"];
    let status = merged(object.kind, before, wanted, &now.to_string());
    let mut fields = status.as_object().into_iter().flatten();
    if fields.all(|(field, value)| before[field] == *value) {
        return Ok(());
    }
    let patch = Patch::Merge(json!({
        "metadata": {"resourceVersion": current.metadata.resource_version},
        "status": status,
    }));
    unless_gone(
        api.patch_status(name, &PatchParams::apply(MANAGER), &patch)
            .await,
    )
}

/// Whether a write fails because others are at work: somebody has changed the object since it was
/// read, or its namespace is being deleted.
fn is_by_others(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else {
        return false;
    };
    let causes = status.details.iter().flat_map(|details| &details.causes);
    status.code == CONFLICT || causes.into_iter().any(|cause| cause.reason == ENDING)
}

/// Returns the generation of the object that a status was made of; None if it has no conditions.
fn observed(status: &Value) -> Option<i64> {
    let parents = list(status, "parents").flat_map(|parent| list(parent, "conditions"));
    let conditions = list(status, "conditions").chain(parents);
    conditions
        .filter_map(|condition| condition["observedGeneration"].as_i64())
        .max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_namespace_is_no_failure_to_speak_of() {
        let causes = json!([{"reason": "NamespaceTerminating", "field": "metadata.namespace"}]);
        let status = json!({"code": 403, "reason": "Forbidden", "details": {"causes": causes}});
        let status = serde_json::from_value(status).expect("a status");
        assert!(is_by_others(&kube::Error::Api(status)));
    }
}
