// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Looks up once the names of the pods that have given addresses, in EndpointSlices: the agent's
//! account may not read pods. Called by `portolan trace` and lists.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
};

use k8s_openapi::api::{core::v1::Node, discovery::v1::EndpointSlice};
use kube::{Api, Client, api::ListParams};
use serde::de::DeserializeOwned;

use super::{
    SourceError,
    api_server::Access,
    named::{Directory, answered, client, listed},
};

/// The most objects in one answer.
const PAGE: u32 = 500;

/// The pod of each address, as `namespace/name`; None for an address that several pods have.
#[derive(Default)]
struct Found(HashMap<IpAddr, Option<String>>);

impl Found {
    fn add(&mut self, slices: &[EndpointSlice]) {
        for endpoint in slices.iter().flat_map(listed) {
            if let (Some(address), Some(pod)) = (endpoint.address, endpoint.pod) {
                let known = self.0.entry(address).or_insert_with(|| Some(pod.clone()));
                if *known != Some(pod) {
                    *known = None;
                }
            }
        }
    }
    /// KUBE: a slice lists a pod in the host network with its node's address.
    fn leave_out(&mut self, nodes: &[Node]) {
        let addresses = nodes.iter().filter_map(|node| node.status.as_ref());
        let addresses = addresses.flat_map(|status| status.addresses.iter().flatten());
        for address in addresses.filter_map(|one| one.address.parse().ok()) {
            self.0.insert(address, None);
        }
    }
}

impl Directory {
    /// Returns the pods that own these addresses, as `namespace/name`. Pods in the host network
    /// have the node's address, so they are not returned for it.
    pub async fn pods_at(
        &self,
        wanted: &HashSet<IpAddr>,
    ) -> Result<HashMap<IpAddr, String>, SourceError> {
        let mut found = Found::default();
        found.add(&self.slices().await?);
        if let Self::Server(access) = self {
            // Without the right to list them, they are not known.
            let nodes: Result<Vec<Node>, _> = pages(access, &client(access).await?).await;
            found.leave_out(&nodes.unwrap_or_default());
        }
        let own = found.0.into_iter();
        let own = own.filter(|(address, _)| wanted.contains(address));
        Ok(own
            .filter_map(|(address, name)| Some((address, name?)))
            .collect())
    }

    /// Returns every slice.
    pub(super) async fn slices(&self) -> Result<Vec<EndpointSlice>, SourceError> {
        match self {
            Self::Server(access) => pages(access, &client(access).await?).await,
            Self::Folder(_) => self.objects("EndpointSlice"),
        }
    }
}

/// Returns all objects of a kind.
async fn pages<K>(access: &Access, client: &Client) -> Result<Vec<K>, SourceError>
where
    K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let api: Api<K> = Api::all(client.clone());
    let mut params = ListParams::default().limit(PAGE);
    let mut found = Vec::new();
    loop {
        let page = answered(access, api.list(&params)).await?;
        found.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(found),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::named::tests::SLICE;

    #[test]
    fn addresses_of_nodes_and_of_several_pods_are_no_pods() {
        let node = json!({"metadata": {"name": "node-a"}, "status": {"addresses": [
            {"type": "Hostname", "address": "node-a"},
            {"type": "InternalIP", "address": "10.40.1.20"},
        ]}});
        let slice = |name: &str| -> [EndpointSlice; 1] {
            let text = SLICE.replace("name: cart-a", &format!("name: {name}"));
            let slice = control::documents::values("a.yaml", &text).remove(0);
            [serde_json::from_value(slice).expect("a slice")]
        };
        let address = IpAddr::from([10, 40, 1, 20]);
        let mut found = Found::default();
        found.add(&slice("cart-a"));
        assert_eq!(found.0[&address].as_deref(), Some("shop/cart-a"));
        found.leave_out(&[serde_json::from_value(node).expect("a node")]);
        assert_eq!(found.0[&address], None);
        let mut found = Found::default();
        found.add(&slice("cart-a"));
        found.add(&slice("other"));
        assert_eq!(found.0[&address], None, "it is one of two");
    }
}
