// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Many services and their EndpointSlices in a real API server.

use anyhow::Result;
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;
use tokio::runtime::{Builder, Runtime};

use super::records::{self, NAMESPACE, endpoints_of};
use crate::node::{
    api_server::ApiServer,
    etcd::{self, Record},
    kubeconfig,
    netns::NetNs,
};

pub struct Objects<'a> {
    node: &'a NetNs,
    server: ApiServer<'a>,
    runtime: Runtime,
    client: Client,
    /// The first endpoint of each service, as an index into `TARGETS`. Index: the service's number.
    targets: Vec<usize>,
}

impl<'a> Objects<'a> {
    /// Starts an API server on a node, which announces `advertise`, and makes the Node object with
    /// `address` as its InternalIP.
    pub fn start(node: &'a NetNs, advertise: &str, address: &str) -> Result<Self> {
        let server = ApiServer::start(node, advertise)?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        server.make_node(address)?;
        let file = server.kubeconfig();
        let client = node.enter(|| runtime.block_on(kubeconfig::client(&file)))??;
        Ok(Self {
            node,
            server,
            runtime,
            client,
            targets: Vec::new(),
        })
    }

    pub fn node(&self) -> &'a NetNs {
        self.node
    }
    pub fn server(&self) -> &ApiServer<'a> {
        &self.server
    }
    /// Returns the API server, for tests that end and start it.
    pub fn server_mut(&mut self) -> &mut ApiServer<'a> {
        &mut self.server
    }
    pub fn count(&self) -> u32 {
        self.targets.len() as u32
    }

    /// Adds services until there are `services` of them.
    pub fn grow(&mut self, services: u32, endpoints: u32) -> Result<()> {
        let new = self.count()..services;
        self.store(new, |number| records::of(number, endpoints))?;
        self.targets.resize(services as usize, 0);
        Ok(())
    }

    /// Creates one more service, without endpoints.
    pub fn announce(&mut self) -> Result<()> {
        let object = serde_json::from_value(records::service(self.count()))?;
        let services = Api::<Service>::namespaced(self.client.clone(), NAMESPACE);
        self.run(services.create(&PostParams::default(), &object))?;
        self.targets.push(0);
        Ok(())
    }
    /// Creates two endpoints for a service that `announce` has created.
    pub fn serve(&self, number: u32) -> Result<()> {
        let object = serde_json::from_value(records::slice(number, endpoints_of(0, 2)))?;
        self.run(self.slices().create(&PostParams::default(), &object))
    }
    /// Removes the services with the number `services` and above.
    pub fn shrink(&mut self, services: u32) -> Result<()> {
        self.store(services..self.count(), records::none_of)?;
        self.targets.truncate(services as usize);
        Ok(())
    }

    /// Gives each of the first `services` services `endpoints` endpoints.
    pub fn set_endpoints_of(&mut self, services: u32, endpoints: u32) -> Result<()> {
        let targets = &self.targets;
        self.store(0..services, |number| {
            let endpoints = endpoints_of(targets[number as usize], endpoints);
            [records::of_slice(number, endpoints)]
        })
    }

    /// Makes the other pod the first of a service's endpoints. Returns its index in `TARGETS`.
    pub fn swap(&mut self, service: u32, endpoints: u32) -> Result<usize> {
        let target = 1 - self.targets[service as usize];
        let patch = Patch::Merge(json!({"endpoints": endpoints_of(target, endpoints)}));
        let (name, parameters) = (format!("s{service}-a"), PatchParams::default());
        self.run(self.slices().patch(&name, &parameters, &patch))?;
        self.targets[service as usize] = target;
        Ok(target)
    }

    fn slices(&self) -> Api<EndpointSlice> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    fn run<T>(&self, work: impl Future<Output = kube::Result<T>>) -> Result<()> {
        self.node.enter(|| self.runtime.block_on(work))??;
        Ok(())
    }

    /// Writes `records` of each service to etcd directly, as kube-apiserver stores them. It counts
    /// all of its cluster IPs whenever it creates or removes a service itself: with 30 000 services
    /// it takes a second for 25 more.
    fn store<const N: usize>(
        &self,
        services: impl Iterator<Item = u32>,
        records: impl Fn(u32) -> [Record; N],
    ) -> Result<()> {
        let all: Vec<_> = services.flat_map(records).collect();
        etcd::store(self.node, &all)
    }
}
