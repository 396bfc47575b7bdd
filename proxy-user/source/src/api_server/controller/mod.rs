// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes for the whole cluster: the status of the Gateway API's objects, what is made for Gateways
//! (`publish`), and events about objects. Of several such processes the one with the lease
//! (`lease`) follows the cluster as an agent does, without maps. Called by `portolan controller`.

pub(super) mod lease;
pub(super) mod publish;

use std::{collections::HashSet, fs, time::Duration};

use control::{
    apply::ApplyResult,
    causes::chain,
    model::Converter,
    object::ObjectName,
    plan::ServicePlan,
    syncer::{Kernel, Syncer},
    warnings::Warnings,
};
use kube::Client;
use tokio::{sync::mpsc, task::yield_now, time::timeout};

use super::{Access, ApiServer, Requests, USER_AGENT, events};
use crate::{ObjectSource, SourceError};
use lease::Election;
use publish::publish;

/// How many batches of changed objects may wait while one is planned.
const BATCHES: usize = 16;
/// The longest time to give the lease up at the end.
const RELEASE: Duration = Duration::from_secs(1);
const FORBIDDEN: u16 = 403;
/// The file with the namespace of a pod.
const NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// A process that writes for the whole cluster.
#[derive(Clone, Debug)]
pub struct Controller {
    pub access: Access,
    /// Its name among those that want the lease.
    pub name: String,
    /// Whether Services are made for Gateways without addresses.
    pub gateway_services: bool,
    /// Whether warnings about objects become events.
    pub object_events: bool,
}

/// Takes plans where there are no maps: to plan a service is to find what is wrong with it.
struct NoMaps;

impl Kernel for NoMaps {
    fn apply(&mut self, _: &[(ObjectName, ServicePlan)]) -> ApplyResult {
        ApplyResult::default()
    }
    fn prune(&mut self, _: &HashSet<ObjectName>) -> ApplyResult {
        ApplyResult::default()
    }
}

impl Controller {
    /// Writes whenever it has the lease, until `stop` ends; then gives the lease up. `converter`
    /// makes what converts objects for no node.
    pub async fn run(
        &self,
        converter: impl Fn() -> Converter,
        stop: impl Future<Output = ()>,
    ) -> Result<(), SourceError> {
        let agent = format!("{USER_AGENT} (controller)");
        let client = self.access.client(&Requests::default(), &agent).await?;
        let mut election = Election::new(&client, &own_namespace(), &self.name);
        let ended = tokio::select! {
            ended = self.write(&client, &mut election, converter) => ended,
            () = stop => Ok(()),
        };
        _ = timeout(RELEASE, election.release()).await;
        ended
    }

    /// Waits for the lease, and writes until it is lost, again and again.
    async fn write(
        &self,
        client: &Client,
        election: &mut Election,
        converter: impl Fn() -> Converter,
    ) -> Result<(), SourceError> {
        loop {
            election.win().await;
            tracing::info!("{} has the lease, and writes for the cluster", self.name);
            let mut converter = converter();
            converter.keeps_made = true;
            tokio::select! {
                ended = self.lead(client, converter) => return ended,
                () = election.keep() => {
                    tracing::warn!("{} has lost the lease, and writes no more", self.name);
                }
            }
        }
    }

    /// Follows the cluster and writes what is wanted; ends only if the source does.
    async fn lead(&self, client: &Client, converter: Converter) -> Result<(), SourceError> {
        let (mut warnings, reports) = events::reported(true);
        if !self.object_events {
            warnings = Warnings::default();
        }
        let mut syncer = Syncer::new("", warnings);
        syncer.state.gateways.set_services(self.gateway_services);
        let source = ApiServer::new(self.access.clone(), converter);
        let (sender, mut batches) = mpsc::channel(BATCHES);
        let (wanted, news) = mpsc::unbounded_channel();
        let syncing = async {
            while let Some(batch) = batches.recv().await {
                syncer.fold(batch);
                while syncer.has_changes() {
                    for write in syncer.sync(&mut NoMaps).writes {
                        // The receiver exists as long as this.
                        _ = wanted.send(write);
                    }
                    yield_now().await;
                }
            }
        };
        tokio::select! {
            ended = source.run(sender) => ended,
            () = syncing => Err(SourceError::WatchEnded),
            () = publish(client.clone(), news) => Err(SourceError::WatchEnded),
            () = events::publish(client.clone(), self.name.clone(), reports) => {
                Err(SourceError::WatchEnded)
            }
        }
    }
}

/// Returns the namespace of this pod, in which the lease is.
fn own_namespace() -> String {
    let text = fs::read_to_string(NAMESPACE).unwrap_or_default();
    match text.trim() {
        "" => "kube-system".to_owned(),
        namespace => namespace.to_owned(),
    }
}

/// Logs a failure: as a warning, if it is the first of several.
fn report(attempt: &str, error: &kube::Error, is_first: bool) {
    let is_forbidden = matches!(error, kube::Error::Api(status) if status.code == FORBIDDEN);
    let error = chain(error);
    let remedy = if is_forbidden {
        "the controller's role must allow it: docs/security.md; "
    } else {
        ""
    };
    if is_first {
        tracing::warn!("could not {attempt}: {error}; {remedy}it is tried again");
    } else {
        tracing::debug!("could not {attempt}: {error}");
    }
}
