// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The API server as a source: one watch per kind of object (`follow`), their news merged into batches.
//! Objects are converted at once and let go of: only names are kept here. Started by `agent`.

mod client;
mod events;
mod follow;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};

use k8s_openapi::{
    api::{
        core::v1::{Node, Service},
        discovery::v1::EndpointSlice,
        networking::v1::ServiceCIDR,
    },
    jiff::Timestamp,
};
use kube::{Api, runtime::watcher::Event};
use tokio::{
    sync::mpsc::{self, error::TryRecvError},
    task::JoinSet,
};

use super::{Batch, Change, Source, SourceError};
use crate::{
    model::{Converter, Kind, LABEL_HEADLESS, LABEL_PROXY_NAME, Object, ObjectKey},
    object::{ObjectName, Warning},
    warnings::{ObjectWarning, Topic},
};

pub use client::Access;
use follow::{Followed, News, Selector, Told, follow};

/// KUBE: when the endpoints of a slice changed, for the latency metric.
const ANNOTATION_TRIGGER: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// Changes per batch while a list comes in: few batches, yet never a whole list in a queue.
const BATCH: usize = 1024;
/// What the watches may have told and the merger has not taken yet.
const QUEUE: usize = 64;

/// The API server that keeps the cluster's objects.
#[derive(Debug)]
pub struct ApiServer {
    access: Access,
    node_name: String,
    converter: Converter,
    service_cidrs: bool,
    reports: Option<mpsc::Receiver<ObjectWarning>>,
}

impl ApiServer {
    /// `node_name` is the node whose object is followed.
    pub fn new(access: Access, node_name: &str) -> Self {
        Self {
            access,
            node_name: node_name.to_owned(),
            converter: Converter::new(node_name),
            service_cidrs: false,
            reports: None,
        }
    }
    /// Whether to ask for the ranges of cluster IPs, too, which not everybody needs.
    #[must_use]
    pub fn with_service_cidrs(self, service_cidrs: bool) -> Self {
        Self {
            service_cidrs,
            ..self
        }
    }
    /// Makes reports about objects events, which their owners see.
    #[must_use]
    pub fn with_events(self, reports: mpsc::Receiver<ObjectWarning>) -> Self {
        Self {
            reports: Some(reports),
            ..self
        }
    }
}

impl Source for ApiServer {
    async fn run(self, batches: mpsc::Sender<Batch>) -> Result<(), SourceError> {
        let client = self.access.client().await?;
        // KUBE: what these labels leave to others is not even sent.
        let ours = format!("!{LABEL_HEADLESS},!{LABEL_PROXY_NAME}");
        let own_node = format!("metadata.name={}", self.node_name);
        let (sender, mut told) = mpsc::channel(QUEUE);
        // Ended with this future.
        let mut watches = JoinSet::new();
        watches.spawn(follow(
            Api::<Service>::all(client.clone()),
            Selector::Labels(ours.clone()),
            News::Service,
            sender.clone(),
        ));
        watches.spawn(follow(
            Api::<EndpointSlice>::all(client.clone()),
            Selector::Labels(ours),
            News::EndpointSlice,
            sender.clone(),
        ));
        watches.spawn(follow(
            Api::<Node>::all(client.clone()),
            Selector::Fields(own_node),
            News::Node,
            sender.clone(),
        ));
        if let Some(reports) = self.reports {
            watches.spawn(events::publish(client.clone(), self.node_name, reports));
        }
        let mut merger = Merger::new(self.converter, self.access.to_string());
        if self.service_cidrs {
            watches.spawn(follow(
                Api::<ServiceCIDR>::all(client),
                Selector::All,
                News::ServiceCidr,
                sender,
            ));
        } else {
            drop(sender);
            merger.known(Kind::ServiceCidr).listed = true;
        }
        loop {
            let first = tokio::select! {
                first = told.recv() => first,
                () = batches.closed() => return Ok(()),
            };
            let Some(first) = first else {
                return Err(SourceError::WatchEnded);
            };
            merger.take(first);
            while merger.batch.changes.len() < BATCH {
                match told.try_recv() {
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
}

/// What is known of one kind: enough to tell what a new list no longer names.
#[derive(Debug, Default)]
struct Known {
    names: HashSet<ObjectName>,
    /// The names in the list that is coming in.
    listing: Option<HashSet<ObjectName>>,
    listed: bool,
}

/// Turns what the watches tell into batches.
struct Merger {
    converter: Converter,
    server: String,
    started: Timestamp,
    services: Known,
    slices: Known,
    nodes: Known,
    service_cidrs: Known,
    /// Objects about which there are warnings, so that these can end.
    warned: HashSet<ObjectKey>,
    /// What keeps a kind from being followed.
    faults: BTreeMap<Kind, String>,
    batch: Batch,
    /// Whether the batch says anything besides its changes.
    news: bool,
}

impl Merger {
    fn new(converter: Converter, server: String) -> Self {
        Self {
            converter,
            server,
            started: Timestamp::now(),
            services: Known::default(),
            slices: Known::default(),
            nodes: Known::default(),
            service_cidrs: Known::default(),
            warned: HashSet::new(),
            faults: BTreeMap::new(),
            batch: Batch::default(),
            news: false,
        }
    }

    /// What has been told since the last batch, if anything.
    fn batch(&mut self) -> Option<Batch> {
        if !self.news && self.batch.changes.is_empty() && self.batch.warnings.is_empty() {
            return None;
        }
        self.news = false;
        let complete = self.batch.complete;
        let batch = std::mem::take(&mut self.batch);
        self.batch.complete = complete;
        Some(batch)
    }

    fn take(&mut self, told: Told) {
        match told {
            Told::News(News::Service(event)) => self.event(*event),
            Told::News(News::EndpointSlice(event)) => {
                if let Event::Apply(slice) = &*event {
                    self.note_trigger(slice);
                }
                self.event(*event);
            }
            Told::News(News::Node(event)) => self.event(*event),
            Told::News(News::ServiceCidr(event)) => self.event(*event),
            Told::Fault(kind, reason) => {
                if self.faults.insert(kind, reason.clone()) != Some(reason) {
                    self.tell_faults();
                }
            }
            Told::Fine(kind) => {
                if self.faults.remove(&kind).is_some() {
                    self.tell_faults();
                }
            }
        }
    }

    fn tell_faults(&mut self) {
        let server = &self.server;
        let warnings = self.faults.iter().map(|(kind, reason)| Warning {
            object: format!("API server {server}"),
            reason: format!(
                "its {kind}s cannot be followed: {reason}; services keep what was last known, it is tried again with growing pauses"
            ),
        });
        let warnings = warnings.collect();
        self.batch.warnings.push((Topic::ApiServer, warnings));
    }

    fn known(&mut self, kind: Kind) -> &mut Known {
        match kind {
            Kind::Service => &mut self.services,
            Kind::EndpointSlice => &mut self.slices,
            Kind::Node => &mut self.nodes,
            Kind::ServiceCidr => &mut self.service_cidrs,
        }
    }

    fn event<K: Followed>(&mut self, event: Event<K>) {
        let kind = K::KIND;
        match event {
            Event::Init => self.known(kind).listing = Some(HashSet::new()),
            Event::InitApply(object) | Event::Apply(object) => {
                match object.convert(&mut self.converter) {
                    Ok((object, warnings)) => self.upsert(kind, object, warnings),
                    // Without a name there is nothing to remember it by; no server keeps such an object.
                    Err(warning) => tracing::warn!("{warning}"),
                }
            }
            Event::Delete(object) => {
                if let Ok(name) = self.converter.object_name(kind, object.meta()) {
                    self.delete(kind, name);
                }
            }
            Event::InitDone => {
                let known = self.known(kind);
                known.listed = true;
                let listed = known.listing.take().unwrap_or_default();
                let gone: Vec<_> = known.names.difference(&listed).cloned().collect();
                for name in gone {
                    self.delete(kind, name);
                }
                let all = [
                    &self.services,
                    &self.slices,
                    &self.nodes,
                    &self.service_cidrs,
                ];
                if all.iter().all(|known| known.listed) && !self.batch.complete {
                    self.batch.complete = true;
                    self.batch.listed = true;
                    self.news = true;
                }
            }
        }
    }

    fn upsert(&mut self, kind: Kind, object: Object, warnings: Vec<Warning>) {
        let name = object.name().clone();
        let key = object.key();
        if warnings.is_empty() {
            self.forget_warnings(&key);
        } else {
            self.warned.insert(key.clone());
            self.batch.warnings.push((Topic::Object(key), warnings));
        }
        let known = self.known(kind);
        if let Some(listing) = &mut known.listing {
            listing.insert(name.clone());
        }
        known.names.insert(name);
        self.batch.changes.push(Change::Upsert(object));
    }

    fn delete(&mut self, kind: Kind, name: ObjectName) {
        self.known(kind).names.remove(&name);
        let key = ObjectKey { kind, name };
        self.forget_warnings(&key);
        self.batch.changes.push(Change::Delete(key));
    }

    fn forget_warnings(&mut self, key: &ObjectKey) {
        if self.warned.remove(key) {
            let topic = Topic::Object(key.clone());
            self.batch.warnings.push((topic, Vec::new()));
        }
    }

    /// KUBE: what changed before the agent began says nothing about how fast it is.
    fn note_trigger(&mut self, slice: &EndpointSlice) {
        let annotations = slice.metadata.annotations.as_ref();
        let time = annotations.and_then(|all| all.get(ANNOTATION_TRIGGER));
        if let Some(time) = time.and_then(|time| time.parse::<Timestamp>().ok())
            && time > self.started
        {
            self.batch.triggers.push(time);
        }
    }
}
