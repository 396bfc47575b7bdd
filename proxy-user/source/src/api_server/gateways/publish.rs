// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes what is on the board to the API server, if this agent is the elected one. An agent with
//! nothing to write asks for no lease, so a cluster at rest has one holder, which renews it.

use std::{collections::HashMap, fmt::Debug, path::Path, sync::Arc, time::Duration};

use control::{
    causes::chain,
    gateway::Write,
    model::{Kind, ObjectKey, gateway::status::merged, original},
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
    api::{DeleteParams, Patch, PatchParams, PropagationPolicy},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::{
    board::Board,
    lease::{Election, RENEW},
};

/// An agent that does not hold the lease leaves others this much time, drawn, to do what is wanted:
/// of thousands of agents a few ask for the lease.
const DELAY: Duration = Duration::from_secs(5);
/// How many objects are written at a time.
const AT_ONCE: usize = 8;
/// The pauses before an object is tried again.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LAST_PAUSE: Duration = Duration::from_secs(60);

const NOT_FOUND: u16 = 404;
const CONFLICT: u16 = 409;
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
    is_failing: bool,
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
            is_failing: false,
        }
    }

    /// Never ends.
    pub(in super::super) async fn run(&mut self) {
        loop {
            self.board.filled().await;
            sleep(DELAY.mul_f64(fastrand::f64())).await;
            if self.board.is_empty() {
                continue;
            }
            match self.election.hold().await {
                Ok(None) => {
                    tracing::info!("this agent writes the status of the Gateway API's objects");
                    self.board.try_all();
                    self.lead().await;
                }
                Ok(Some(time)) => sleep(time).await,
                Err(error) => {
                    self.report("hold the lease for writing status", &error);
                    sleep(RENEW).await;
                }
            }
        }
    }

    /// Gives the lease up, if it is held.
    pub(in super::super) async fn release(&mut self) {
        self.election.release().await;
    }

    /// Writes until the lease is lost.
    async fn lead(&mut self) {
        while self.election.is_held() {
            if self.election.renew_in().is_zero() {
                match self.election.hold().await {
                    Ok(None) => {}
                    Ok(Some(_)) => return,
                    Err(error) => {
                        self.report("renew the lease for writing status", &error);
                        sleep(Duration::from_secs(1)).await;
                        continue;
                    }
                }
            }
            let some = self.board.take(AT_ONCE);
            if some.is_empty() {
                _ = timeout(self.election.renew_in(), self.board.has_untried()).await;
                continue;
            }
            let client = &self.client;
            let written = some
                .iter()
                .map(|(object, write)| written(client, object, write));
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
            self.is_failing = false;
            return;
        };
        let failures = self.failures.entry(object.clone()).or_default();
        let pause = FIRST_PAUSE * 2_u32.saturating_pow((*failures).min(10));
        *failures += 1;
        // Somebody else has changed the object meanwhile.
        let is_conflict = matches!(&error, kube::Error::Api(status) if status.code == CONFLICT);
        if !is_conflict {
            self.report(&format!("write about {object}"), &error);
        }
        let board = Arc::clone(&self.board);
        tokio::spawn(async move {
            sleep(pause.min(LAST_PAUSE)).await;
            board.put_back(object);
        });
    }

    /// Logs the first of several failures in a row.
    fn report(&mut self, attempt: &str, error: &kube::Error) {
        let error = chain(error);
        if self.is_failing {
            tracing::debug!("could not {attempt}: {error}");
        } else {
            tracing::warn!(
                "could not {attempt}: {error}; portolan's role must allow it to write the status of gateway.networking.k8s.io, its lease (coordination.k8s.io) and, with portolan.gatewayServices, Services and EndpointSlices: docs/gateway.md. It is tried again"
            );
        }
        self.is_failing = true;
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

fn api<K>(client: &Client, object: &ObjectKey) -> Api<K>
where
    K: kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
{
    Api::namespaced(client.clone(), &object.name.namespace)
}

async fn apply<K>(client: &Client, object: &ObjectKey, wanted: &Value) -> kube::Result<()>
where
    K: kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + Debug
        + DeserializeOwned,
{
    let how = PatchParams::apply(MANAGER).force();
    let patch = Patch::Apply(wanted);
    let api = api::<K>(client, object);
    api.patch(&object.name.name, &how, &patch).await.map(drop)
}

async fn delete<K>(client: &Client, object: &ObjectKey) -> kube::Result<()>
where
    K: kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + Debug
        + DeserializeOwned,
{
    let how = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Background),
        ..DeleteParams::default()
    };
    match api::<K>(client, object)
        .delete(&object.name.name, &how)
        .await
    {
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
    client.request::<Value>(request).await.map(drop)
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
