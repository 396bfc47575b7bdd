// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes what is on the board to the API server, if this agent is the elected one. An agent with
//! nothing to write asks for no lease, so a cluster at rest has one holder, which renews it.

use std::{collections::HashMap, path::Path, sync::Arc, time::Duration};

use control::{
    causes::chain,
    gateway::Write,
    model::{
        ObjectKey,
        gateway::{
            is_made,
            status::{list, merged},
        },
    },
};
use futures_util::future::join_all;
use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, Preconditions, PropagationPolicy},
    core::DynamicObject,
};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::{
    super::objects,
    board::Board,
    lease::{Election, RENEW, WRITE},
};

/// An agent that does not hold the lease leaves others this much time, drawn, to do what is wanted:
/// of thousands of agents a few ask for the lease.
const DELAY: Duration = Duration::from_secs(5);
/// How many objects are written at a time.
const AT_ONCE: usize = 8;
/// The pauses before an object is tried again.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LAST_PAUSE: Duration = Duration::from_secs(60);
/// The longest pause of an agent without the lease, while what is wanted stays undone though
/// another agent holds it, or nobody can: it may be something that nobody can write.
const PATIENCE: Duration = Duration::from_secs(60);

const FORBIDDEN: u16 = 403;
const NOT_FOUND: u16 = 404;
const CONFLICT: u16 = 409;
/// KUBE: why nothing can be created in a namespace that is being deleted.
const ENDING: &str = "NamespaceTerminating";
/// KUBE: who has set the fields of an object.
const MANAGER: &str = "portolan";
const NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// Returns the namespace of the agent's pod, in which its lease is.
pub(in super::super) fn own_namespace() -> String {
    let text = std::fs::read_to_string(Path::new(NAMESPACE)).unwrap_or_default();
    match text.trim() {
        "" => "kube-system".to_owned(),
        namespace => namespace.to_owned(),
    }
}

/// Writes what is wanted.
pub(in super::super) struct Publisher {
    client: Client,
    board: Arc<Board>,
    election: Election,
    /// How often in a row an object could not be written.
    failures: HashMap<ObjectKey, u32>,
    /// Whether the last attempt at the lease failed, and the last one at an object.
    is_lease_failing: bool,
    is_writing_failing: bool,
}

impl Publisher {
    pub(in super::super) fn new(
        client: &Client,
        namespace: &str,
        own: &str,
        board: &Arc<Board>,
    ) -> Self {
        Self {
            client: client.clone(),
            board: Arc::clone(board),
            election: Election::new(client.clone(), namespace, own),
            failures: HashMap::new(),
            is_lease_failing: false,
            is_writing_failing: false,
        }
    }

    /// Never ends.
    pub(in super::super) async fn run(&mut self) {
        let (mut patience, mut has_looked) = (Duration::ZERO, false);
        loop {
            if self.board.is_empty() {
                (patience, has_looked) = (Duration::ZERO, false);
            }
            self.board.filled().await;
            let waiting = self.board.first();
            sleep(DELAY.mul_f64(fastrand::f64())).await;
            // While much changes, something is always wanted, but each thing only for a moment.
            if !waiting.is_some_and(|object| self.board.wants(&object)) {
                continue;
            }
            match self.hold().await {
                Ok(None) => {
                    tracing::info!("this agent writes the status of the Gateway API's objects");
                    self.board.try_all();
                    self.lead().await;
                    (patience, has_looked) = (Duration::ZERO, false);
                }
                // A second look shows whether its holder is alive.
                Ok(Some(time)) if !has_looked => {
                    has_looked = true;
                    sleep(time).await;
                }
                Ok(Some(_)) | Err(_) => {
                    has_looked = false;
                    patience = (patience * 2).clamp(RENEW, PATIENCE);
                    sleep(patience).await;
                }
            }
        }
    }

    /// Gives the lease up, if it is held.
    pub(in super::super) async fn release(&mut self) {
        self.election.release().await;
    }

    /// Takes or renews the lease, as `Election::hold`.
    async fn hold(&mut self) -> kube::Result<Option<Duration>> {
        let held = self.election.hold().await;
        if let Err(error) = &held {
            report(
                "hold the lease for writing status",
                error,
                !self.is_lease_failing,
            );
        }
        self.is_lease_failing = held.is_err();
        held
    }

    /// Writes until the lease is lost.
    async fn lead(&mut self) {
        while self.election.is_held() {
            if self.election.renew_in().is_zero() {
                match self.hold().await {
                    Ok(None) => {}
                    Ok(Some(_)) => return,
                    Err(_) => sleep(Duration::from_secs(1)).await,
                }
                continue;
            }
            let some = self.board.take(AT_ONCE);
            if some.is_empty() {
                _ = timeout(self.election.renew_in(), self.board.has_untried()).await;
                continue;
            }
            let client = &self.client;
            let written = some.iter().map(async |(object, write)| {
                let written = timeout(WRITE, written(client, object, write)).await;
                written.unwrap_or_else(|late| Err(kube::Error::Service(late.into())))
            });
            let results = join_all(written).await;
            for ((object, _), result) in some.into_iter().zip(results) {
                self.note(object, result);
            }
        }
    }

    /// Notes whether an object was written; one that was not is tried again after a pause.
    fn note(&mut self, object: ObjectKey, result: kube::Result<()>) {
        let Err(error) = result else {
            self.failures.remove(&object);
            self.is_writing_failing = false;
            return;
        };
        let board = Arc::clone(&self.board);
        self.failures.retain(|object, _| board.wants(object));
        let failures = self.failures.entry(object.clone()).or_default();
        let is_first = *failures == 0 && !self.is_writing_failing;
        let pause = FIRST_PAUSE * 2_u32.saturating_pow((*failures).min(10));
        *failures += 1;
        if !is_by_others(&error) {
            report(&format!("write about {object}"), &error, is_first);
            self.is_writing_failing = true;
        }
        board.pause(&object);
        tokio::spawn(async move {
            sleep(pause.min(LAST_PAUSE)).await;
            board.put_back(object);
        });
    }
}

/// Logs a failure: as a warning, if it is the first of several.
fn report(attempt: &str, error: &kube::Error, is_first: bool) {
    let is_forbidden = matches!(error, kube::Error::Api(status) if status.code == FORBIDDEN);
    let error = chain(error);
    let remedy = if is_forbidden {
        "portolan's role must allow it to write the status of gateway.networking.k8s.io, its lease (coordination.k8s.io) and, with portolan.gatewayServices, Services and EndpointSlices: docs/gateway.md; "
    } else {
        ""
    };
    if is_first {
        tracing::warn!("could not {attempt}: {error}; {remedy}it is tried again");
    } else {
        tracing::debug!("could not {attempt}: {error}");
    }
}

async fn written(client: &Client, object: &ObjectKey, write: &Write) -> kube::Result<()> {
    let (api, name) = (objects(client, object), &*object.name.name);
    match write {
        Write::Status(status) => write_status(&api, object, status).await,
        Write::Apply(wanted) => apply(&api, name, wanted).await,
        Write::Delete => delete(&api, name).await,
    }
}

async fn apply(api: &Api<DynamicObject>, name: &str, wanted: &Value) -> kube::Result<()> {
    let found = api.get_opt(name).await?;
    if found.is_some_and(|found| !is_made(&found.metadata)) {
        let why = "there is one of this name that was not made for a Gateway; rename or delete it";
        return Err(kube::Error::Service(why.into()));
    }
    let how = PatchParams::apply(MANAGER).force();
    api.patch(name, &how, &Patch::Apply(wanted)).await.map(drop)
}

async fn delete(api: &Api<DynamicObject>, name: &str) -> kube::Result<()> {
    let found = api.get_opt(name).await?;
    let Some(found) = found.filter(|found| is_made(&found.metadata)) else {
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
