// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Follows the API server: one watch per kind of object (`follow`), all merged into batches
//! (`merge`). Objects are converted at once, and only their names are kept here. Started by
//! `agent`.

mod client;
mod events;
mod follow;
mod gateways;
mod merge;
mod protobuf;
mod requests;
#[cfg(test)]
mod tests;
mod watch;
mod wire;

use std::{sync::Arc, time::Duration};

use control::{
    change::Batch,
    gateway::Writer,
    model::{Converter, Kind, LABEL_HEADLESS, LABEL_PROXY_NAME, ObjectKey, gateway::GROUP},
    warnings::Warnings,
};
use k8s_openapi::api::{
    core::v1::{Node, Service},
    discovery::v1::EndpointSlice,
    networking::v1::ServiceCIDR,
};
use kube::{
    Api, Client,
    core::{ApiResource, DynamicObject, GroupVersionKind},
};
use tokio::{
    sync::mpsc::{self, error::TryRecvError},
    task::JoinSet,
    time::timeout,
};

use super::{ObjectSource, SourceError};

pub use client::Access;
pub(crate) use client::USER_AGENT;
use follow::{Message, follow};
use gateways::{Board, Publisher};
use merge::Merger;
pub use requests::Requests;
use watch::Selector;

/// The most changes per batch while a list arrives. So there are few batches, but a queue never
/// holds an entire list.
const BATCH: usize = 1024;
/// The most messages of the watches that may wait for the merger.
const QUEUE: usize = 64;
/// The longest time to give up the lease when the agent stops.
const RELEASE: Duration = Duration::from_secs(1);

/// The source that follows an API server.
#[derive(Debug)]
pub struct ApiServer {
    access: Access,
    converter: Converter,
    /// Whether to follow the ServiceCIDR objects as well.
    pub service_cidrs: bool,
    /// What is to be written about objects of the Gateway API; None if this agent never writes it.
    board: Option<Arc<Board>>,
    reports: Option<events::Reports>,
    requests: Requests,
}

impl ApiServer {
    /// Returns a source that follows all services and EndpointSlices, but only the node of
    /// `converter`, and the objects of the Gateway API if that reads them and the server has such
    /// kinds.
    pub fn new(access: Access, converter: Converter) -> Self {
        Self {
            access,
            converter,
            service_cidrs: false,
            board: None,
            reports: None,
            requests: Requests::default(),
        }
    }
    /// Also returns an empty set of warnings. The source makes Kubernetes events of what is
    /// reported through it: about the node, and if `of_objects`, about Services and EndpointSlices.
    #[must_use]
    pub fn with_events(self, of_objects: bool) -> (Self, Warnings) {
        let (warnings, reports) = events::reported(of_objects);
        let source = Self {
            reports: Some(reports),
            ..self
        };
        (source, warnings)
    }
    /// Lets this agent write the status of the Gateway API's objects, if it is elected.
    #[must_use]
    pub fn with_writing(self) -> Self {
        let board = self.converter.gateways.then(Arc::default);
        Self { board, ..self }
    }
}

impl ApiServer {
    async fn client(&self) -> Result<Client, SourceError> {
        let agent = format!("{USER_AGENT} (node {})", self.converter.node_name);
        self.access.client(&self.requests, &agent).await
    }
}

impl ObjectSource for ApiServer {
    fn requests(&self) -> Requests {
        self.requests.clone()
    }

    fn writer(&self) -> Option<Arc<dyn Writer>> {
        let board = self.board.clone()?;
        Some(board)
    }

    async fn check(&self) -> Result<(), SourceError> {
        self.client().await.map(drop)
    }

    async fn run(self, batches: mpsc::Sender<Batch>) -> Result<(), SourceError> {
        let client = self.client().await?;
        let has_gateways = self.converter.gateways;
        let node_name = self.converter.node_name.to_string();
        // KUBE: these are kube-proxy's selectors (1.36, cmd/kube-proxy/app/server.go), so that the
        // server sends only what is served.
        let services = Selector {
            labels: match &self.converter.proxy_name {
                None => format!("!{LABEL_PROXY_NAME}"),
                Some(name) => format!("{LABEL_PROXY_NAME}={name}"),
            },
            fields: "spec.clusterIP!=None".to_owned(),
        };
        let slices = Selector {
            labels: format!("!{LABEL_HEADLESS}"),
            ..Selector::default()
        };
        let own_node = Selector {
            fields: format!("metadata.name={node_name}"),
            ..Selector::default()
        };
        let (sender, messages) = mpsc::channel(QUEUE);
        // The tasks end when this future is dropped.
        let mut watches = JoinSet::new();
        let requests = &self.requests;
        watches.spawn(follow::<Service>(&client, &services, requests, &sender));
        watches.spawn(follow::<EndpointSlice>(&client, &slices, requests, &sender));
        watches.spawn(follow::<Node>(&client, &own_node, requests, &sender));
        if let Some(reports) = self.reports {
            watches.spawn(events::publish(client.clone(), node_name.clone(), reports));
        }
        let mut publisher = self
            .board
            .as_ref()
            .map(|board| Publisher::new(&client, &gateways::own_namespace(), &node_name, board));
        let mut merger = Merger::new(self.converter, self.access.to_string());
        if self.service_cidrs {
            let all = Selector::default();
            watches.spawn(follow::<ServiceCIDR>(&client, &all, requests, &sender));
        } else {
            merger.leave_out(Kind::ServiceCidr);
        }
        if has_gateways {
            let requests = requests.clone();
            watches.spawn(gateways::follow_all(client.clone(), requests, sender));
        } else {
            drop(sender);
            Kind::OF_GATEWAYS
                .iter()
                .for_each(|kind| merger.leave_out(*kind));
        }
        let merging = merge(merger, messages, batches);
        let Some(publisher) = &mut publisher else {
            return merging.await;
        };
        let ended = tokio::select! {
            ended = merging => ended,
            () = publisher.run() => Err(SourceError::WatchEnded),
        };
        _ = timeout(RELEASE, publisher.release()).await;
        ended
    }
}

/// Makes batches of the watches' messages, until nobody receives them.
async fn merge(
    mut merger: Merger,
    mut messages: mpsc::Receiver<Message>,
    batches: mpsc::Sender<Batch>,
) -> Result<(), SourceError> {
    loop {
        let first = tokio::select! {
            first = messages.recv() => first,
            () = batches.closed() => return Ok(()),
        };
        let Some(first) = first else {
            return Err(SourceError::WatchEnded);
        };
        merger.take(first);
        while merger.changes() < BATCH {
            match messages.try_recv() {
                Ok(more) => merger.take(more),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
        }
        if let Some(batch) = merger.batch()
            && batches.send(batch).await.is_err()
        {
            return Ok(());
        }
    }
}

/// Returns the objects of a kind at the server, those of the object's namespace if it has one.
fn objects(client: &Client, ObjectKey { kind, name }: &ObjectKey) -> Api<DynamicObject> {
    let (client, resource) = (client.clone(), resource(*kind));
    match kind.is_namespaced() {
        true => Api::namespaced_with(client, &name.namespace, &resource),
        false => Api::all_with(client, &resource),
    }
}

/// Returns how the server calls a kind.
fn resource(kind: Kind) -> ApiResource {
    let group = match kind {
        Kind::Node | Kind::Service | Kind::Namespace => "",
        Kind::EndpointSlice => "discovery.k8s.io",
        Kind::ServiceCidr => "networking.k8s.io",
        _ => GROUP,
    };
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind.name()))
}
