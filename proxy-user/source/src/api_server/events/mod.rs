// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Turns reports about objects into Kubernetes events, which `kubectl describe` shows: of an agent
//! those about its node, of the controller those about all other objects. Started by `api_server`
//! and `controller`.

mod event;
mod queue;

use std::{sync::Arc, time::Duration};

use control::{
    causes::chain,
    model::Kind,
    object::uid_hash,
    warnings::{Report, Reporter, Warnings},
};
use k8s_openapi::api::events::v1::Event;
use kube::{
    Api, Client,
    api::{ListParams, PostParams},
};
use tokio::time::sleep;

use super::objects;
pub(super) use queue::Queue;

/// The pause after each event.
const PAUSE: Duration = Duration::from_millis(100);

/// The pauses before an event that could not be written is tried again, in seconds.
const RETRIES: [u64; 3] = [1, 5, 30];

const FORBIDDEN: u16 = 403;
const CONFLICT: u16 = 409;

/// Returns an empty set of warnings, and what is reported through it: about nodes, or if
/// `of_objects`, about all other objects.
pub(super) fn reported(of_objects: bool) -> (Warnings, Arc<Queue>) {
    let queue = Arc::new(Queue::new(of_objects));
    let reporter: Arc<dyn Reporter> = Arc::clone(&queue) as _;
    (Warnings::reported_to(reporter), queue)
}

/// Writes an event for each report; never ends. `writer` is the name of the node or of the
/// controller's pod.
pub(super) async fn publish(client: Client, writer: String, queue: Arc<Queue>) {
    let mut is_failing = false;
    loop {
        let report = queue.next().await;
        let mut written = write(&client, &writer, &report).await;
        for pause in RETRIES {
            match &written {
                Err(kube::Error::Api(status)) if status.code == FORBIDDEN => break,
                Err(_) => sleep(Duration::from_secs(pause)).await,
                Ok(()) => break,
            }
            written = write(&client, &writer, &report).await;
        }
        let was_failing = std::mem::replace(&mut is_failing, written.is_err());
        if let Err(error) = written {
            let (object, error) = (&report.object, chain(&error));
            if was_failing {
                tracing::debug!("event about {object}: {error}");
            } else {
                tracing::warn!(
                    "{object}: could not create an event for the warning about it: {error}; portolan's role must allow it to create events (events.k8s.io) and to list such objects"
                );
            }
        }
        sleep(PAUSE).await;
    }
}

/// Creates the event about an object, unless the object is gone or already has this event.
async fn write(client: &Client, writer: &str, report: &Report) -> kube::Result<()> {
    // `kubectl describe` finds events by the object's uid, of which only a hash is kept. The roles
    // only allow to list objects.
    let name = &report.object.name.name;
    let only = ListParams::default().fields(&format!("metadata.name={name}"));
    let objects = objects(client, &report.object);
    let found = objects.list_metadata(&only).await?.items.pop();
    let Some(uid) = found.and_then(|object| object.metadata.uid) else {
        return Ok(());
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
        return Ok(());
    }
    let event = event::event(uid, writer, report);
    let events: Api<Event> = Api::namespaced(client.clone(), event::namespace(report));
    match events.create(&PostParams::default(), &event).await {
        Err(kube::Error::Api(status)) if status.code == CONFLICT => Ok(()),
        created => created.map(drop),
    }
}
