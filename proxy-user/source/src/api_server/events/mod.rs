// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Turns reports about objects into Kubernetes events, which `kubectl describe` shows. Every node
//! has the same reports about Services and EndpointSlices, so one node writes each event, and the
//! others find it. Reports about the node are its own. Started by `api_server`.

mod event;
mod queue;

use std::{sync::Arc, time::Duration};

use control::{
    causes::chain,
    model::{Kind, ObjectKey},
    object::uid_hash,
    warnings::{Report, Reporter, Warnings},
};
use k8s_openapi::api::events::v1::Event;
use kube::{
    Api, Client,
    api::{ListParams, PostParams},
};
use tokio::{sync::mpsc, time::sleep};

use super::objects;
use queue::Queue;

/// The most reports about the node that may wait; further ones are only in the log.
const WAITING: usize = 256;

/// Before it asks for an event, each node waits a time drawn up to this. Of thousands of nodes, the
/// first has then written the event when the others ask, and these ask one after the other.
const DELAY: Duration = Duration::from_secs(30);
/// The least time between two requests for events that others may have written.
pub(super) const REST: Duration = Duration::from_secs(15);
/// The pause after each event that was written.
const PAUSE: Duration = Duration::from_secs(1);

const CONFLICT: u16 = 409;

/// The reports that wait to become events.
#[derive(Debug)]
pub(super) struct Reports {
    /// About the node.
    own: mpsc::Receiver<Report>,
    /// About Services and EndpointSlices; None if these get no events.
    shared: Option<Arc<Queue>>,
}

/// The ends of the queues at which reports arrive.
#[derive(Debug)]
struct Arrivals {
    own: mpsc::Sender<Report>,
    shared: Option<Arc<Queue>>,
}

impl Reporter for Arrivals {
    fn report(&self, report: Report) {
        // If a queue is full, the report is at least in the log.
        match (report.object.kind, &self.shared) {
            (Kind::Node, _) => _ = self.own.try_send(report),
            (_, Some(shared)) => shared.add(report),
            (_, None) => {}
        }
    }
    fn withdraw(&self, object: &ObjectKey, reason: &str) {
        if let Some(shared) = &self.shared {
            shared.withdraw(object, reason);
        }
    }
}

/// Returns an empty set of warnings, and what is reported through it. `of_objects`: whether
/// Services and EndpointSlices get events.
pub(super) fn reported(of_objects: bool) -> (Warnings, Reports) {
    let (sender, own) = mpsc::channel(WAITING);
    let shared = of_objects.then(Arc::<Queue>::default);
    let arrivals = Arrivals {
        own: sender,
        shared: shared.clone(),
    };
    let warnings = Warnings::reported_to(Arc::new(arrivals));
    (warnings, Reports { own, shared })
}

/// Writes an event for each report. It does not end while the warnings are in use.
pub(super) async fn publish(client: Client, node_name: String, reports: Reports) {
    let writer = Writer { client, node_name };
    let shared = async {
        if let Some(queue) = &reports.shared {
            publish_shared(&writer, queue).await;
        }
    };
    tokio::join!(publish_own(&writer, reports.own), shared);
}

async fn publish_own(writer: &Writer, mut reports: mpsc::Receiver<Report>) {
    let mut log = Log::default();
    while let Some(report) = reports.recv().await {
        log.note(&report, writer.write(&report).await);
        sleep(PAUSE).await;
    }
}

async fn publish_shared(writer: &Writer, queue: &Queue) {
    let mut log = Log::default();
    loop {
        queue.filled().await;
        sleep(DELAY.mul_f64(fastrand::f64())).await;
        // A node that finds an event missing has drawn a short time, and goes on at once: the
        // others will find its events.
        while let Some(report) = queue.take() {
            let written = match writer.has(&report).await {
                Ok(false) => writer.write(&report).await,
                found => found.map(|_| false),
            };
            if !log.note(&report, written) {
                break;
            }
            sleep(PAUSE).await;
        }
        sleep(REST).await;
    }
}

/// Logs the first of several failures in a row.
#[derive(Default)]
struct Log {
    is_failing: bool,
}

impl Log {
    /// Returns whether the event was written.
    fn note(&mut self, report: &Report, written: kube::Result<bool>) -> bool {
        let object = &report.object;
        let was_failing = self.is_failing;
        self.is_failing = written.is_err();
        match written {
            Ok(is_written) => return is_written,
            Err(error) if was_failing => tracing::debug!("event about {object}: {}", chain(&error)),
            Err(error) => tracing::warn!(
                "{object}: could not create an event for the warning about it: {}; portolan's role must allow it to get and create events (events.k8s.io) and to list services, endpointslices and nodes",
                chain(&error),
            ),
        }
        false
    }
}

/// Looks events up and creates them.
struct Writer {
    client: Client,
    node_name: String,
}

impl Writer {
    /// True if the server has the event about this report.
    async fn has(&self, report: &Report) -> kube::Result<bool> {
        let events = self.events(report);
        let found = events.get_metadata_opt(&event::name(report)).await?;
        Ok(found.is_some())
    }

    /// Creates an event about an object; false if the object is gone or already has this event.
    async fn write(&self, report: &Report) -> kube::Result<bool> {
        // `kubectl describe` finds events by the object's uid, of which the agent keeps a hash. The
        // agent's role only allows to list objects.
        let name = &report.object.name.name;
        let only = ListParams::default().fields(&format!("metadata.name={name}"));
        let objects = objects(&self.client, &report.object);
        let found = objects.list_metadata(&only).await?.items.pop();
        let Some(uid) = found.and_then(|object| object.metadata.uid) else {
            return Ok(false);
        };
        let hash = uid_hash(Some(&uid));
        let report = match report.object.kind {
            Kind::Node => &Report {
                uid_hash: hash,
                ..report.clone()
            },
            _ => report,
        };
        if ![0, hash].contains(&report.uid_hash) {
            // Another object has this name now. If it is at fault, there is a report about it.
            return Ok(false);
        }
        let event = event::event(uid, &self.node_name, report);
        let events = self.events(report);
        match events.create(&PostParams::default(), &event).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == CONFLICT => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn events(&self, report: &Report) -> Api<Event> {
        Api::namespaced(self.client.clone(), event::namespace(report))
    }
}
