// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where single objects are looked up once by their names, and a pod's addresses. Called by
//! `portolan explain` and `trace`.

use std::{collections::BTreeSet, fs, net::IpAddr, path::PathBuf, time::Duration};

use control::{causes::chain, documents::values};
use k8s_openapi::api::discovery::v1 as discovery;
use kube::Client;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::{
    SourceError,
    api_server::{Access, Requests, USER_AGENT},
    unreadable,
};

/// The longest time to wait for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The source in which objects are looked up.
#[derive(Clone, Debug)]
pub enum Directory {
    Server(Access),
    /// A folder of manifests.
    Folder(PathBuf),
}

/// An endpoint of a service as its EndpointSlice lists it, ready or not.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ListedEndpoint {
    pub address: Option<IpAddr>,
    /// Namespace and name of the endpoint's pod.
    pub pod: Option<String>,
    pub node: Option<String>,
    pub ready: bool,
    pub serving: bool,
    pub terminating: bool,
    /// The zones and nodes of the endpoint's topology hints, as `zone NAME` and `node NAME`.
    pub hints: Vec<String>,
}

impl Directory {
    /// Returns a pod's addresses; an empty list if no slice names it.
    pub async fn pod(&self, namespace: &str, name: &str) -> Result<Vec<IpAddr>, SourceError> {
        let wanted = format!("{namespace}/{name}");
        let slices = self.slices().await?;
        let endpoints = slices.iter().flat_map(listed);
        let own = endpoints.filter(|one| one.pod.as_ref() == Some(&wanted));
        let addresses: BTreeSet<_> = own.filter_map(|one| one.address).collect();
        Ok(addresses.into_iter().collect())
    }

    /// Returns every object of this kind in the manifest folder; an empty list if this is an API
    /// server.
    pub(super) fn objects<T: DeserializeOwned>(&self, kind: &str) -> Result<Vec<T>, SourceError> {
        let Self::Folder(folder) = self else {
            return Ok(Vec::new());
        };
        let failed = |source| unreadable(folder, source);
        let mut found = Vec::new();
        for entry in fs::read_dir(folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            // A file that is being replaced is skipped if it cannot be read.
            let Ok(text) = fs::read_to_string(&path) else {
                continue;
            };
            let objects = values(&path.display().to_string(), &text).into_iter();
            let wanted = objects.filter(|object| object["kind"] == kind);
            found.extend(wanted.filter_map(|object| serde_json::from_value(object).ok()));
        }
        Ok(found)
    }
}

/// Returns a client of a command.
pub(super) async fn client(access: &Access) -> Result<Client, SourceError> {
    access.client(&Requests::default(), USER_AGENT).await
}

pub(super) async fn answered<T>(
    access: &Access,
    asked: impl Future<Output = kube::Result<T>>,
) -> Result<T, SourceError> {
    match timeout(PATIENCE, asked).await {
        Ok(answer) => answer.map_err(|error| access.unusable(chain(&error))),
        Err(_) => Err(access.unusable(format!("no answer in {} s", PATIENCE.as_secs()))),
    }
}

/// Returns the endpoints of a slice, in their order.
pub fn listed(slice: &discovery::EndpointSlice) -> Vec<ListedEndpoint> {
    let namespace = slice.metadata.namespace.as_deref().unwrap_or("default");
    let endpoints = slice.endpoints.iter();
    let listed = endpoints.map(|endpoint| {
        let conditions = endpoint.conditions.clone().unwrap_or_default();
        let target = endpoint.target_ref.as_ref();
        let pod = target.filter(|target| target.kind.as_deref() == Some("Pod"));
        let hints = endpoint.hints.clone().unwrap_or_default();
        let zones = hints.for_zones.into_iter().flatten();
        let nodes = hints.for_nodes.into_iter().flatten();
        let zones = zones.map(|zone| format!("zone {}", zone.name));
        let nodes = nodes.map(|node| format!("node {}", node.name));
        ListedEndpoint {
            // KUBE: only the first address of an endpoint counts.
            address: endpoint
                .addresses
                .first()
                .and_then(|text| text.parse().ok()),
            pod: pod.and_then(|pod| Some(format!("{namespace}/{}", pod.name.as_ref()?))),
            node: endpoint.node_name.clone(),
            // KUBE: nil means ready, serving, not terminating.
            ready: conditions.ready.unwrap_or(true),
            serving: conditions.serving.unwrap_or(true),
            terminating: conditions.terminating.unwrap_or(false),
            hints: zones.chain(nodes).collect(),
        }
    });
    listed.collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) const SLICE: &str = "apiVersion: v1
kind: List
items:
- apiVersion: discovery.k8s.io/v1
  kind: EndpointSlice
  metadata: {name: cart-1, namespace: shop, labels: {kubernetes.io/service-name: cart}}
  addressType: IPv4
  ports: [{name: http, port: 8080}]
  endpoints:
  - addresses: [10.40.1.20]
    targetRef: {kind: Pod, name: cart-a}
    nodeName: node-a
    zone: east
    hints: {forZones: [{name: east}]}
  - addresses: [10.40.1.21]
    conditions: {ready: false, serving: true, terminating: true}
---
kind: Service
";

    #[tokio::test]
    async fn slices_and_pods_are_read_from_a_folder() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("cart.yaml"), SLICE).expect("a file");
        let directory = Directory::Folder(folder.path().into());
        let slices = directory.objects("EndpointSlice").expect("readable");
        let found: Vec<_> = slices.iter().flat_map(listed).collect();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].pod.as_deref(), Some("shop/cart-a"));
        assert!(found[0].ready);
        assert_eq!(found[0].hints, ["zone east"]);
        assert!(!found[1].ready && found[1].serving && found[1].terminating);
        let address = IpAddr::from([10, 40, 1, 20]);
        for (name, expected) in [("cart-a", &[address][..]), ("gone", &[][..])] {
            let pod = directory.pod("shop", name).await;
            assert_eq!(pod.expect("readable"), expected);
        }
        let wanted = [20, 21, 22].map(|last| IpAddr::from([10, 40, 1, last]));
        let pods = directory.pods_at(&wanted.into()).await.expect("readable");
        assert_eq!(Vec::from_iter(pods), [(address, "shop/cart-a".to_owned())]);
    }
}
