// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The cluster's objects in a real API server: many services and their slices.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use anyhow::{Context, Result};
use futures_util::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::{
    core::v1::{Node, Service},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::{
    support::{api_server::ApiServer, netns::NetNs},
    world::{PORT, TARGETS},
};

const NAMESPACE: &str = "default";
/// Requests under way at a time.
const AT_ONCE: usize = 16;

pub(crate) struct Objects<'a> {
    node: &'a NetNs,
    server: ApiServer<'a>,
    runtime: tokio::runtime::Runtime,
    client: Client,
    /// Which target each service leads to first.
    targets: Vec<usize>,
}

/// A service's cluster IP and port.
pub(crate) fn address_of(service: u32) -> SocketAddr {
    let [third, fourth] = [service / 250 + 1, service % 250 + 1].map(|part| part as u8);
    (Ipv4Addr::new(172, 30, third, fourth), 80).into()
}

impl<'a> Objects<'a> {
    pub(crate) fn start(node: &'a NetNs) -> Result<Self> {
        let server = ApiServer::start(node, "10.40.0.1");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let client = node.enter(|| {
            runtime.block_on(async {
                let client = server.client().await?;
                let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}});
                let nodes = Api::<Node>::all(client.clone());
                nodes.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
                let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": "10.40.0.1"}]}});
                nodes.patch_status("node-a", &PatchParams::default(), &Patch::Merge(&status)).await?;
                Ok::<_, anyhow::Error>(client)
            })
        })??;
        Ok(Self {
            node,
            server,
            runtime,
            client,
            targets: Vec::new(),
        })
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.server.kubeconfig()
    }
    pub(crate) fn count(&self) -> u32 {
        self.targets.len() as u32
    }
    pub(crate) fn target_of(&self, service: u32) -> usize {
        self.targets[service as usize]
    }

    /// Makes services until there are so many.
    pub(crate) fn grow(&mut self, services: u32, endpoints: u32) -> Result<()> {
        let new: Vec<u32> = (self.count()..services).collect();
        let (services_api, slices) = self.apis();
        self.each(&new, |number| {
            let (services_api, slices) = (services_api.clone(), slices.clone());
            async move {
                let address = address_of(number).ip();
                let service = json!({
                    "metadata": {"name": format!("s{number}")},
                    "spec": {"clusterIP": address, "ports": [{"port": 80, "targetPort": PORT}]}
                });
                let slice = json!({
                    "metadata": {"name": format!("s{number}-a"), "labels": {"kubernetes.io/service-name": format!("s{number}")}},
                    "addressType": "IPv4", "ports": [{"name": "", "protocol": "TCP", "port": PORT}],
                    "endpoints": endpoints_of(0, endpoints)
                });
                services_api.create(&PostParams::default(), &serde_json::from_value(service)?).await?;
                slices.create(&PostParams::default(), &serde_json::from_value(slice)?).await?;
                Ok(())
            }
        })?;
        self.targets.resize(services as usize, 0);
        Ok(())
    }

    /// Gives every service so many endpoints.
    pub(crate) fn set_endpoints(&mut self, endpoints: u32) -> Result<()> {
        let all: Vec<u32> = (0..self.count()).collect();
        let (_, slices) = self.apis();
        let targets = self.targets.clone();
        self.each(&all, |number| {
            let slices = slices.clone();
            let target = targets[number as usize];
            async move { patch(&slices, number, endpoints_of(target, endpoints)).await }
        })
    }

    /// Has a service lead to one target, and to nothing else.
    pub(crate) fn point(&mut self, service: u32, target: usize) -> Result<()> {
        let (_, slices) = self.apis();
        let work = patch(&slices, service, endpoints_of(target, 1));
        self.node.enter(|| self.runtime.block_on(work))??;
        self.targets[service as usize] = target;
        Ok(())
    }

    fn apis(&self) -> (Api<Service>, Api<EndpointSlice>) {
        let client = || self.client.clone();
        (
            Api::namespaced(client(), NAMESPACE),
            Api::namespaced(client(), NAMESPACE),
        )
    }

    fn each<F: Future<Output = Result<()>>>(
        &self,
        numbers: &[u32],
        work: impl Fn(u32) -> F,
    ) -> Result<()> {
        let all = stream::iter(numbers)
            .map(|number| work(*number))
            .buffer_unordered(AT_ONCE);
        self.node
            .enter(|| self.runtime.block_on(all.try_collect::<()>()))?
            .context("write to the API server")
    }
}

async fn patch(slices: &Api<EndpointSlice>, service: u32, endpoints: Value) -> Result<()> {
    let patch = Patch::Merge(json!({"endpoints": endpoints}));
    slices
        .patch(&format!("s{service}-a"), &PatchParams::default(), &patch)
        .await?;
    Ok(())
}

/// The target, and others that nobody has, on other nodes.
fn endpoints_of(target: usize, count: u32) -> Value {
    let others = (0..count)
        .filter(|number| *number as usize != target)
        .take(count as usize - 1);
    let addresses = std::iter::once(TARGETS[target].to_owned())
        .chain(others.map(|number| format!("10.40.1.{}", 20 + number)));
    addresses
        .map(|address| json!({"addresses": [address], "nodeName": "node-a", "conditions": {"ready": true}}))
        .collect()
}
