// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The cluster's objects in a real API server: many services and their slices.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use anyhow::Result;
use k8s_openapi::api::{
    core::v1::{Node, Service},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use super::records;
use crate::support::{
    api_server::{ApiServer, Record},
    netns::NetNs,
};

/// The addresses of the node's pods that answer, and the port where they tell by which they were called.
pub(crate) const TARGETS: [&str; 2] = ["10.40.1.20", "10.40.1.21"];
pub(crate) const PORT: u16 = 8080;

pub(crate) const NAMESPACE: &str = "default";

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

/// The `number`-th of so many services, spread over all of them: a prime step visits each where their number is no
/// multiple of it.
pub(crate) fn spread(number: u32, services: u32) -> u32 {
    (u64::from(number) * 7919 % u64::from(services)) as u32
}

impl<'a> Objects<'a> {
    /// With the Node object of `address`, one of the node's.
    pub(crate) fn start(node: &'a NetNs, address: &str) -> Result<Self> {
        let server = ApiServer::start(node, address);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let client = node.enter(|| {
            runtime.block_on(async {
                let client = server.client().await?;
                let object =
                    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}});
                let nodes = Api::<Node>::all(client.clone());
                nodes
                    .create(&PostParams::default(), &serde_json::from_value(object)?)
                    .await?;
                let status =
                    json!({"status": {"addresses": [{"type": "InternalIP", "address": address}]}});
                nodes
                    .patch_status("node-a", &PatchParams::default(), &Patch::Merge(&status))
                    .await?;
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
    pub(crate) fn node(&self) -> &'a NetNs {
        self.node
    }
    pub(crate) fn server(&self) -> &ApiServer<'a> {
        &self.server
    }
    pub(crate) fn count(&self) -> u32 {
        self.targets.len() as u32
    }
    pub(crate) fn target_of(&self, service: u32) -> usize {
        self.targets[service as usize]
    }

    /// Makes services until there are so many.
    pub(crate) fn grow(&mut self, services: u32, endpoints: u32) {
        let new = self.count()..services;
        self.store(new, |number| records::of(number, endpoints));
        self.targets.resize(services as usize, 0);
    }

    /// Makes one more service, without endpoints as yet.
    pub(crate) fn announce(&mut self) -> Result<u32> {
        let number = self.count();
        let (services, _) = self.apis();
        let object = service(number)?;
        let parameters = PostParams::default();
        let work = services.create(&parameters, &object);
        self.node.enter(|| self.runtime.block_on(work))??;
        self.targets.push(0);
        Ok(number)
    }
    /// Gives it its first endpoints.
    pub(crate) fn serve(&self, number: u32) -> Result<()> {
        let (_, slices) = self.apis();
        let object = slice(number, 2)?;
        let parameters = PostParams::default();
        let work = slices.create(&parameters, &object);
        self.node.enter(|| self.runtime.block_on(work))??;
        Ok(())
    }
    /// Removes the services from this number on.
    pub(crate) fn shrink(&mut self, services: u32) {
        self.store(services..self.count(), records::none_of);
        self.targets.truncate(services as usize);
    }

    /// Gives every service so many endpoints.
    pub(crate) fn set_endpoints(&mut self, endpoints: u32) {
        self.set_endpoints_of(self.count(), endpoints);
    }
    /// Gives each of the first services so many endpoints.
    pub(crate) fn set_endpoints_of(&mut self, services: u32, endpoints: u32) {
        let targets = &self.targets;
        self.store(0..services, |number| {
            let endpoints = endpoints_of(targets[number as usize], endpoints);
            [records::slice(number, endpoints)]
        });
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

    /// Past the server, which takes a second for 25 services when it has 30 000; it serves what is there.
    fn store<const N: usize>(
        &self,
        services: impl Iterator<Item = u32>,
        records: impl Fn(u32) -> [Record; N],
    ) {
        let all: Vec<_> = services.flat_map(records).collect();
        self.server.store(&all);
    }
}

fn service(number: u32) -> Result<Service> {
    let address = address_of(number).ip();
    Ok(serde_json::from_value(json!({
        "metadata": {"name": format!("s{number}")},
        "spec": {"clusterIP": address, "ports": [{"port": 80, "targetPort": PORT}]}
    }))?)
}

fn slice(number: u32, endpoints: u32) -> Result<EndpointSlice> {
    Ok(serde_json::from_value(json!({
        "metadata": {"name": format!("s{number}-a"), "labels": {"kubernetes.io/service-name": format!("s{number}")}},
        "addressType": "IPv4", "ports": [{"name": "", "protocol": "TCP", "port": PORT}],
        "endpoints": endpoints_of(0, endpoints)
    }))?)
}

async fn patch(slices: &Api<EndpointSlice>, service: u32, endpoints: Value) -> Result<()> {
    let patch = Patch::Merge(json!({"endpoints": endpoints}));
    slices
        .patch(&format!("s{service}-a"), &PatchParams::default(), &patch)
        .await?;
    Ok(())
}

/// The target, and others that nobody has, on other nodes.
pub(super) fn endpoints_of(target: usize, count: u32) -> Value {
    let others = (0..count)
        .filter(|number| *number as usize != target)
        .take(count as usize - 1);
    let addresses = std::iter::once(TARGETS[target].to_owned())
        .chain(others.map(|number| format!("10.40.1.{}", 20 + number)));
    addresses
        .map(|address| json!({"addresses": [address], "nodeName": "node-a", "conditions": {"ready": true}}))
        .collect()
}
