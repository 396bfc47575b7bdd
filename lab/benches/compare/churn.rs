// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Changes endpoints through the API server all the time, in a thread of its own.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Context, Result, anyhow};
use futures_util::{StreamExt, stream};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use lab::{load::objects::Objects, node::kubeconfig};
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval};

/// How many services have changing endpoints: the ones with the lowest numbers.
pub(crate) const SERVICES: u32 = 100;
/// If more endpoints than this are to change each second, one write changes ten of them: next to
/// the other work, two processors cannot write more EndpointSlices a second.
const MANY: u32 = 500;
const AT_ONCE: usize = 32;

/// The thread that changes endpoints until it is stopped.
pub(crate) struct Writer {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<u32>>,
}

impl Writer {
    pub(crate) fn start(objects: &Objects<'_>, wanted: u32) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let file = objects.kubeconfig();
        let services = SERVICES.min(objects.count() - 1).max(1);
        let work = move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(async {
                let client = kubeconfig::client(&file).await?;
                write(client, services, wanted, &stopped).await
            })
        };
        // A thread stays in the network namespace in which it was made.
        let thread = objects.node().enter(|| std::thread::spawn(work))?;
        Ok(Self { stop, thread })
    }

    /// Stops the thread and returns how many endpoints were changed.
    pub(crate) fn stop(self) -> Result<u32> {
        self.stop.store(true, Ordering::Relaxed);
        let joined = self.thread.join();
        joined.map_err(|_| anyhow!("the churn's thread broke down"))?
    }
}

async fn write(client: Client, services: u32, wanted: u32, stop: &AtomicBool) -> Result<u32> {
    let slices: Api<EndpointSlice> = Api::default_namespaced(client);
    let each = if wanted > MANY { 10 } else { 1 };
    let mut ticks = interval(Duration::from_secs(1) * each / wanted);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let paced = stream::unfold(ticks, |mut ticks| async move {
        ticks.tick().await;
        Some(((), ticks))
    });
    let writes = paced
        .take_while(|()| {
            let goes_on = !stop.load(Ordering::Relaxed);
            async move { goes_on }
        })
        .enumerate()
        .map(|(number, ())| {
            let slices = &slices;
            async move {
                let service = number as u32 % services;
                // From one round over the services to the next, the endpoints' addresses change
                // between two ranges.
                let turn = number as u32 / services % 2;
                let endpoints: Vec<_> = (0..each)
                    .map(|n| json!({"addresses": [format!("10.40.{}.{}", 3 + turn, 1 + n)], "nodeName": "node-b", "conditions": {"ready": true}}))
                    .collect();
                let patch = Patch::Merge(json!({"endpoints": endpoints}));
                let name = format!("s{service}-a");
                slices
                    .patch(&name, &PatchParams::default(), &patch)
                    .await
                    .with_context(|| format!("change {name}"))
                    .map(|_| each)
            }
        })
        .buffer_unordered(AT_ONCE);
    let counted: Vec<Result<u32>> = writes.collect().await;
    counted.into_iter().sum()
}
