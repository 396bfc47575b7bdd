// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes what is on the board to the API server, if this agent is the elected one. An agent with
//! nothing to write asks for no lease, so a cluster at rest has one holder, which renews it.

use std::{collections::HashMap, fmt::Debug, path::Path, sync::Arc, time::Duration};

use control::{
    causes::chain,
    gateway::Write,
    model::{
        Kind, ObjectKey,
        gateway::{
            is_made,
            status::{list, merged},
        },
        original,
    },
};
use futures_util::future::join_all;
use http::Request;
use k8s_openapi::{
    NamespaceResourceScope, Resource,
    api::{core::v1::Service, discovery::v1::EndpointSlice},
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, Preconditions, PropagationPolicy},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::{
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
    match write {
        Write::Status(status) => write_status(client, object, status).await,
        Write::Service(service) => apply::<Service>(client, object, service).await,
        Write::DeleteService => delete::<Service>(client, object).await,
        Write::Slice(slice) => apply::<EndpointSlice>(client, object, slice).await,
        Write::DeleteSlice => delete::<EndpointSlice>(client, object).await,
    }
}

/// A kind of which objects are made for Gateways.
trait MadeKind:
    kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned
{
}
impl MadeKind for Service {}
impl MadeKind for EndpointSlice {}

fn api<K: MadeKind>(client: &Client, object: &ObjectKey) -> Api<K> {
    Api::namespaced(client.clone(), &object.name.namespace)
}

async fn apply<K: MadeKind>(
    client: &Client,
    object: &ObjectKey,
    wanted: &Value,
) -> kube::Result<()> {
    let (api, name) = (api::<K>(client, object), &object.name.name);
    let found = api.get_opt(name).await?;
    if found.is_some_and(|found| !is_made(found.meta())) {
        let why = "there is one of this name that was not made for a Gateway; rename or delete it";
        return Err(kube::Error::Service(why.into()));
    }
    let how = PatchParams::apply(MANAGER).force();
    api.patch(name, &how, &Patch::Apply(wanted)).await.map(drop)
}

async fn delete<K: MadeKind>(client: &Client, object: &ObjectKey) -> kube::Result<()> {
    let (api, name) = (api::<K>(client, object), &object.name.name);
    let found = api.get_opt(name).await?;
    let Some(found) = found.filter(|found| is_made(found.meta())) else {
        return Ok(());
    };
    let how = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Background),
        preconditions: Some(Preconditions {
            resource_version: found.meta().resource_version.clone(),
            uid: found.meta().uid.clone(),
        }),
        ..DeleteParams::default()
    };
    match api.delete(name, &how).await {
        Err(kube::Error::Api(status)) if status.code == NOT_FOUND => Ok(()),
        result => result.map(drop),
    }
}

/// Writes our part of an object's status, unless it is there already.
async fn write_status(client: &Client, object: &ObjectKey, wanted: &Value) -> kube::Result<()> {
    let Some(path) = path(object) else {
        return Ok(());
    };
    let http = kube::Error::HttpError;
    let request = Request::get(&path).body(Vec::new()).map_err(http)?;
    let current: Value = match client.request(request).await {
        Ok(current) => current,
        // It is gone, and the watch will say so.
        Err(kube::Error::Api(status)) if status.code == NOT_FOUND => return Ok(()),
        Err(error) => return Err(error),
    };
    // What is wanted was made of an older state of the object; the watch will bring the newer one.
    let (made_of, generation) = (observed(wanted), &current["metadata"]["generation"]);
    if made_of.is_some() && made_of < generation.as_i64() {
        return Ok(());
    }
    let now = Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default();
    let status = merged(object.kind, &current["status"], wanted, &now.to_string());
    let differs = |(field, value): (&String, &Value)| current["status"][field] != *value;
    if !status
        .as_object()
        .is_some_and(|status| status.iter().any(differs))
    {
        return Ok(());
    }
    let patch = json!({
        "metadata": {"resourceVersion": current["metadata"]["resourceVersion"]},
        "status": status,
    });
    let request = Request::patch(format!("{path}/status?fieldManager={MANAGER}"))
        .header(http::header::CONTENT_TYPE, "application/merge-patch+json")
        .body(patch.to_string().into_bytes())
        .map_err(http)?;
    match client.request::<Value>(request).await {
        Err(kube::Error::Api(status)) if status.code == NOT_FOUND => Ok(()),
        written => written.map(drop),
    }
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

/// Returns the path of an object of the Gateway API.
fn path(object: &ObjectKey) -> Option<String> {
    let plural = match object.kind {
        Kind::GatewayClass => original::GatewayClass::URL_PATH_SEGMENT,
        Kind::Gateway => original::Gateway::URL_PATH_SEGMENT,
        Kind::TcpRoute => original::TCPRoute::URL_PATH_SEGMENT,
        Kind::UdpRoute => original::UDPRoute::URL_PATH_SEGMENT,
        _ => return None,
    };
    let group = original::Gateway::API_VERSION;
    let (namespace, name) = (&object.name.namespace, &object.name.name);
    Some(match object.kind.is_namespaced() {
        true => format!("/apis/{group}/namespaces/{namespace}/{plural}/{name}"),
        false => format!("/apis/{group}/{plural}/{name}"),
    })
}
