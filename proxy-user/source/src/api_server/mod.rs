// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Follows the API server: one watch per kind of object (`follow`), all merged into batches
//! (`merge`). Objects are converted at once, and only their names are kept here. Started by
//! `agent`. `controller` follows it, too, and writes.

mod breaker;
mod client;
mod controller;
mod events;
mod follow;
mod merge;
mod protobuf;
mod requests;
mod servers;
#[cfg(test)]
mod tests;
mod watch;
mod wire;

use std::{path::PathBuf, sync::Arc};

use control::{
    change::{Batch, Change},
    model::{
        Converter, Kind, LABEL_HEADLESS, LABEL_PROXY_NAME, Object, ObjectKey,
        gateway::GROUP,
        original::{Gateway, GatewayClass, ReferenceGrant, TCPRoute, UDPRoute},
    },
    warnings::Warnings,
};
use k8s_openapi::api::{
    core::v1::{Namespace, Node, Service},
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
};

use super::{ObjectSource, SourceError};

pub use client::Access;
pub(crate) use client::USER_AGENT;
pub use controller::Controller;
use follow::{Message, follow};
use merge::Merger;
pub use requests::Requests;
use servers::Servers;
use watch::Selector;

/// The most changes per batch while a list arrives. So there are few batches, but a queue never
/// holds an entire list.
const BATCH: usize = 1024;
/// The most messages of the watches that may wait for the merger.
const QUEUE: usize = 64;

/// The source that follows an API server.
#[derive(Debug)]
pub struct ApiServer {
    access: Access,
    converter: Converter,
    /// Whether to follow the ServiceCIDR objects as well.
    pub service_cidrs: bool,
    reports: Option<Arc<events::Queue>>,
    requests: Requests,
}

impl ApiServer {
    /// Returns a source that follows all services and EndpointSlices, but only the node of
    /// `converter`, if it has one, and the objects of the Gateway API if that reads them and the
    /// server has such kinds.
    pub fn new(access: Access, converter: Converter) -> Self {
        Self {
            access,
            converter,
            service_cidrs: false,
            reports: None,
            requests: Requests::default(),
        }
    }
    /// Also returns an empty set of warnings. The source makes Kubernetes events of what is
    /// reported through it about the node.
    #[must_use]
    pub fn with_events(self) -> (Self, Warnings) {
        let (warnings, reports) = events::reported(false);
        let source = Self {
            reports: Some(reports),
            ..self
        };
        (source, warnings)
    }
    /// Keeps the addresses of the API servers in a file of a BPF file system, and begins with those
    /// that are there.
    pub fn keep_servers(&self, file: PathBuf) {
        self.access.servers().keep_in(file);
    }

    async fn client(&self) -> Result<Client, SourceError> {
        let name = match &*self.converter.node_name {
            "" => "controller".to_owned(),
            node => format!("node {node}"),
        };
        let agent = format!("{USER_AGENT} ({name})");
        self.access.client(&self.requests, &agent).await
    }
}

impl ObjectSource for ApiServer {
    fn requests(&self) -> Requests {
        self.requests.clone()
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
        let mut merger = Merger::new(self.converter, self.access.to_string());
        if node_name.is_empty() {
            merger.leave_out(Kind::Node);
        } else {
            watches.spawn(follow::<Node>(&client, &own_node, requests, &sender));
        }
        if let Some(reports) = self.reports {
            watches.spawn(events::publish(client.clone(), node_name, reports));
        }
        let all = Selector::default();
        if self.service_cidrs {
            watches.spawn(follow::<ServiceCIDR>(&client, &all, requests, &sender));
        } else {
            merger.leave_out(Kind::ServiceCidr);
        }
        if has_gateways {
            watches.spawn(follow::<Namespace>(&client, &all, requests, &sender));
            watches.spawn(follow::<GatewayClass>(&client, &all, requests, &sender));
            watches.spawn(follow::<Gateway>(&client, &all, requests, &sender));
            watches.spawn(follow::<TCPRoute>(&client, &all, requests, &sender));
            watches.spawn(follow::<UDPRoute>(&client, &all, requests, &sender));
            watches.spawn(follow::<ReferenceGrant>(&client, &all, requests, &sender));
        } else {
            Kind::OF_GATEWAYS
                .iter()
                .for_each(|kind| merger.leave_out(*kind));
        }
        drop(sender);
        merge(merger, messages, batches, self.access.servers()).await
    }
}

/// Makes batches of the watches' messages, until nobody receives them.
async fn merge(
    mut merger: Merger,
    mut messages: mpsc::Receiver<Message>,
    batches: mpsc::Sender<Batch>,
    servers: &Servers,
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
        let Some(batch) = merger.batch() else {
            continue;
        };
        for change in &batch.changes {
            if let Change::Upsert(Object::EndpointSlice(slice)) = change {
                servers.learn(slice);
            }
        }
        if batches.send(batch).await.is_err() {
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
