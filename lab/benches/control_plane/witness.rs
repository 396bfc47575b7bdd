// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A second watch of all EndpointSlices, besides the agent's. It records when the API server has
//! sent a change, independent of the agent.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use futures_util::{
    TryStreamExt,
    stream::{AbortHandle, abortable},
};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{
    Api, ResourceExt,
    api::{ListParams, WatchEvent, WatchParams},
};
use lab::{load::objects::Objects, node::kubeconfig};

/// The time at which each EndpointSlice's latest event arrived. Key: the slice's name.
type Seen = Arc<Mutex<HashMap<String, Instant>>>;

/// How long to wait for the event of a change after packets follow the change.
const PATIENCE: Duration = Duration::from_secs(10);

/// A watch of all EndpointSlices; dropping it ends the watch.
pub(crate) struct Witness {
    seen: Seen,
    watch: AbortHandle,
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

impl Witness {
    /// Starts to watch the EndpointSlices of the API server of `objects`.
    pub(crate) fn start(objects: &Objects<'_>) -> Result<Self> {
        let seen = Seen::default();
        let note = Arc::clone(&seen);
        let kubeconfig = objects.kubeconfig();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        // The connection is made in the node's network namespace, and the thread stays there.
        let stream = objects.node().enter(|| {
            runtime.block_on(async {
                let slices = Api::<EndpointSlice>::all(kubeconfig::client(&kubeconfig).await?);
                let newest = slices
                    .list_metadata(&ListParams::default().limit(1))
                    .await?;
                let version = newest.metadata.resource_version;
                let version = version.context("a list has no resource version")?;
                let parameters = WatchParams::default().timeout(290);
                Ok::<_, anyhow::Error>(slices.watch(&parameters, &version).await?)
            })
        })??;
        let (stream, watch) = abortable(stream);
        thread::spawn(move || {
            let each = stream.try_for_each(async |event| {
                if let WatchEvent::Added(slice) | WatchEvent::Modified(slice) = event {
                    let mut seen = note.lock().unwrap_or_else(PoisonError::into_inner);
                    seen.insert(slice.name_any(), Instant::now());
                }
                Ok(())
            });
            // An error ends the watch. Then no event comes, and `came` fails.
            _ = runtime.block_on(each);
        });
        Ok(Self { seen, watch })
    }

    /// Waits for the event of a change to the service's EndpointSlice, written at `written`.
    /// Returns when it arrived.
    pub(crate) fn came(&self, service: u32, written: Instant) -> Result<Instant> {
        let name = format!("s{service}-a");
        let deadline = Instant::now() + PATIENCE;
        loop {
            let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            let last = seen.get(&name).copied();
            drop(seen);
            match last {
                Some(came) if came >= written => return Ok(came),
                _ if Instant::now() > deadline => bail!("no event of {name} came"),
                _ => thread::sleep(Duration::from_micros(200)),
            }
        }
    }
}
