// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes a real API server's objects equal to those of a manifest file: applies new and changed
//! objects, deletes the others. Called by the conformance runner.

use std::{
    collections::{BTreeMap, BTreeSet},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use super::cluster::{Key, documents, key};
use crate::node::{api_server::ApiServer, kubeconfig, netns::NetNs};

/// How long a refused change is repeated: a new server must first learn its address ranges.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time for the agent to receive earlier events of other kinds before the node's event. Also the
/// pause before a refused change is repeated.
const SETTLED: Duration = Duration::from_millis(100);
const MANAGER: &str = "conformance";

/// A real API server, and the objects that were applied to it.
pub struct ClusterApi<'a> {
    node: &'a NetNs,
    server: ApiServer<'a>,
    client: Client,
    runtime: Runtime,
    /// The objects as last applied.
    objects: Objects,
}

type Objects = BTreeMap<Key, Value>;

impl<'a> ClusterApi<'a> {
    /// Starts an API server on a node. `advertise` is the address that it announces.
    pub fn start(node: &'a NetNs, advertise: &str) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let server = ApiServer::start(node, advertise)?;
        let client = runtime.block_on(kubeconfig::client(&server.kubeconfig()))?;
        Ok(Self {
            node,
            server,
            client,
            runtime,
            objects: Objects::new(),
        })
    }

    pub fn server(&self) -> &ApiServer<'a> {
        &self.server
    }

    /// Makes the server's objects equal to those of a manifest file. Returns the new resource
    /// version of the Node object.
    pub fn publish(&mut self, manifests: &str) -> Result<u64> {
        let mut wanted = BTreeMap::new();
        for mut object in documents(manifests)? {
            if object["spec"]["type"] == "ExternalName"
                && let Some(spec) = object["spec"].as_object_mut()
            {
                // The server refuses a cluster IP in a service of type ExternalName.
                spec.retain(|field, _| !field.starts_with("clusterIP"));
            }
            wanted.insert(key(&object), object);
        }
        let (client, known) = (&self.client, &self.objects);
        let work = transfer(client, known, &wanted);
        // The runtime makes all of its sockets on this thread.
        let version = self.node.enter(|| self.runtime.block_on(work))??;
        self.objects = wanted;
        sleep(SETTLED);
        Ok(version)
    }
}

async fn transfer(client: &Client, known: &Objects, wanted: &Objects) -> Result<u64> {
    let namespaces: BTreeSet<_> = wanted.keys().map(|[_, namespace, _]| namespace).collect();
    for namespace in namespaces.into_iter().filter(|name| !name.is_empty()) {
        let metadata = json!({"name": namespace});
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
        apply(client, &object).await?;
    }
    for (key, object) in known.iter().filter(|(key, _)| !wanted.contains_key(*key)) {
        let api = api(client, object)?;
        let deleted = api.delete(&key[2], &DeleteParams::default()).await;
        deleted.with_context(|| format!("delete {}", key.join("/")))?;
    }
    let mut version = None;
    // The Node object is applied last: when it has taken effect, so has everything else.
    let (nodes, others): (Vec<_>, Vec<_>) = wanted.iter().partition(|(key, _)| key[0] == "Node");
    for (key, object) in others {
        if known.get(key) != Some(object) {
            apply(client, object).await?;
        }
    }
    tokio::time::sleep(SETTLED).await;
    for (_, node) in nodes {
        let mut node = node.clone();
        // The manifest's version becomes an annotation, so that the object changes every time.
        let ours = node["metadata"]["resourceVersion"].take();
        node["metadata"]["annotations"] = json!({"portolan.test/version": ours});
        if let Some(metadata) = node["metadata"].as_object_mut() {
            metadata.remove("resourceVersion");
        }
        version = apply(client, &node).await?.resource_version();
    }
    let version = version.context("no node")?;
    version.parse().context("read the node's version")
}

fn api(client: &Client, object: &Value) -> Result<Api<DynamicObject>> {
    let kind = object["kind"].as_str().unwrap_or_default();
    let is_global = ["Namespace", "Node"].contains(&kind);
    let is_slice = kind == "EndpointSlice";
    let is_known = is_global || is_slice || kind == "Service";
    ensure!(is_known, "objects of kind {kind:?} are not applied");
    let group = if is_slice { "discovery.k8s.io" } else { "" };
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind));
    if is_global {
        return Ok(Api::all_with(client.clone(), &resource));
    }
    let namespace = object["metadata"]["namespace"].as_str();
    let namespace = namespace.unwrap_or("default");
    Ok(Api::namespaced_with(client.clone(), namespace, &resource))
}

/// Applies a complete object, including its status. If the server refuses the change because a
/// field is immutable, the object is deleted and created.
async fn apply(client: &Client, object: &Value) -> Result<DynamicObject> {
    let api = api(client, object)?;
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let parameters = PatchParams::apply(MANAGER).force();
    let deadline = Instant::now() + PATIENCE;
    let mut main = object.clone();
    if let Some(fields) = main.as_object_mut() {
        fields.remove("status");
    }
    let mut applied = loop {
        match api.patch(name, &parameters, &Patch::Apply(&main)).await {
            Ok(applied) => break applied,
            Err(kube::Error::Api(status))
                if status.message.contains("immutable")
                    || status.message.contains("may not change once set") =>
            {
                api.delete(name, &DeleteParams::default()).await?;
            }
            Err(error) if Instant::now() > deadline => {
                return Err(error).with_context(|| format!("apply {object}"));
            }
            Err(_) => tokio::time::sleep(SETTLED).await,
        }
    };
    if matches!(object["kind"].as_str(), Some("Service" | "Node")) {
        let none = json!({"loadBalancer": {}});
        let status = object.get("status").unwrap_or(&none);
        let status = json!({
            "apiVersion": object["apiVersion"], "kind": object["kind"],
            "metadata": {"name": name}, "status": status,
        });
        // A merge, because server-side apply allows a node only one address of each type.
        let parameters = PatchParams::default();
        let status = Patch::Merge(&status);
        let patched = api.patch_status(name, &parameters, &status).await;
        applied = patched.with_context(|| format!("apply the status of {object}"))?;
    }
    Ok(applied)
}
