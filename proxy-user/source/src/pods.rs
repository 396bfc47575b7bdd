// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Looks up once the names of the pods that have given addresses. If the agent may not list pods,
//! EndpointSlices still name the pods that serve. Called by `portolan trace` and lists.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
};

use k8s_openapi::api::{
    core::v1::{Node, Pod},
    discovery::v1::EndpointSlice,
};
use kube::{Api, Client, api::ListParams};
use serde::de::DeserializeOwned;

use super::{
    SourceError,
    api_server::{Access, Requests, USER_AGENT},
    named::{Directory, allowed, answered, listed},
};

/// The most addresses that are looked up one by one; for more, all pods are listed.
const FEW: usize = 8;
/// The most objects in one answer.
const PAGE: u32 = 500;

/// The pod of each address, as `namespace/name`; None for an address that several pods have.
#[derive(Default)]
struct Found(HashMap<IpAddr, Option<String>>);

impl Found {
    fn add(&mut self, address: IpAddr, name: &str) {
        let known = self.0.entry(address).or_insert_with(|| Some(name.into()));
        if known.as_deref() != Some(name) {
            *known = None;
        }
    }
    fn add_slices(&mut self, slices: &[EndpointSlice]) {
        for endpoint in slices.iter().flat_map(listed) {
            if let (Some(address), Some(pod)) = (endpoint.address, endpoint.pod) {
                self.add(address, &pod);
            }
        }
    }
    /// KUBE: a slice lists a pod in the host network with its node's address.
    fn leave_out_nodes(&mut self, nodes: &[Node]) {
        let addresses = nodes.iter().filter_map(|node| node.status.as_ref());
        let addresses = addresses.flat_map(|status| status.addresses.iter().flatten());
        for address in addresses.filter_map(|one| one.address.parse().ok()) {
            self.0.insert(address, None);
        }
    }
    fn add_pods(&mut self, pods: &[Pod]) {
        for pod in pods {
            let Some(name) = name_of(pod) else { continue };
            let status = pod.status.iter();
            let ips = status.flat_map(|status| status.pod_ips.iter().flatten());
            for ip in ips.filter_map(|one| one.ip.parse().ok()) {
                self.add(ip, &name);
            }
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
        match self {
            Self::Server(access) if !wanted.is_empty() => {
                let client = access.client(&Requests::default(), USER_AGENT).await?;
                if !add_all_pods(access, &client, wanted, &mut found).await? {
                    let all = ListParams::default();
                    let slices = pages(access, &client, all).await?;
                    found.add_slices(&slices.unwrap_or_default());
                    let nodes = pages(access, &client, ListParams::default()).await?;
                    found.leave_out_nodes(&nodes.unwrap_or_default());
                }
            }
            Self::Server(_) => {}
            Self::Folder(_) => found.add_slices(&self.objects("EndpointSlice")?),
        }
        let mut found = found.0;
        found.retain(|address, _| wanted.contains(address));
        let named = found.into_iter();
        Ok(named
            .filter_map(|(address, name)| Some((address, name?)))
            .collect())
    }
}

/// Looks up the pods of these addresses and adds them to `found`; false if the agent may not list
/// pods.
async fn add_all_pods(
    access: &Access,
    client: &Client,
    wanted: &HashSet<IpAddr>,
    found: &mut Found,
) -> Result<bool, SourceError> {
    let asked: Vec<_> = if wanted.len() <= FEW {
        let one = |address| ListParams::default().fields(&format!("status.podIP={address}"));
        wanted.iter().map(one).collect()
    } else {
        vec![ListParams::default()]
    };
    for params in asked {
        match pages(access, client, params).await? {
            Some(pods) => found.add_pods(&pods),
            None => return Ok(false),
        }
    }
    Ok(true)
}

/// Returns all objects that the parameters select; None if the agent may not list them.
pub(super) async fn pages<K>(
    access: &Access,
    client: &Client,
    params: ListParams,
) -> Result<Option<Vec<K>>, SourceError>
where
    K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let api: Api<K> = Api::all(client.clone());
    let mut params = params.limit(PAGE);
    let mut found = Vec::new();
    loop {
        let Some(page) = answered(access, allowed(api.list(&params))).await? else {
            return Ok(None);
        };
        found.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(Some(found)),
        }
    }
}

/// Returns `namespace/name` of a pod; None if it has no addresses of its own or has ended.
fn name_of(pod: &Pod) -> Option<String> {
    let spec = pod.spec.as_ref();
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    let is_over = matches!(phase, Some("Succeeded" | "Failed"));
    let shares = spec.is_some_and(|spec| spec.host_network == Some(true));
    let (namespace, name) = (&pod.metadata.namespace, &pod.metadata.name);
    let name = format!("{}/{}", namespace.as_ref()?, name.as_ref()?);
    (!is_over && !shares).then_some(name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::named::tests::SLICE;

    #[test]
    fn a_nodes_address_in_a_slice_is_no_pods() {
        let node = json!({"metadata": {"name": "node-a"}, "status": {"addresses": [
            {"type": "Hostname", "address": "node-a"},
            {"type": "InternalIP", "address": "10.40.1.20"},
        ]}});
        let mut found = Found::default();
        let slices = control::documents::values("a.yaml", SLICE).remove(0);
        found.add_slices(&[serde_json::from_value(slices).expect("a slice")]);
        let address = IpAddr::from([10, 40, 1, 20]);
        assert_eq!(found.0[&address].as_deref(), Some("shop/cart-a"));
        found.leave_out_nodes(&[serde_json::from_value(node).expect("a node")]);
        assert_eq!(found.0[&address], None);
    }

    #[test]
    fn finished_and_host_network_pods_do_not_own_an_address() {
        let pod = |name: &str, phase: &str, host: bool| -> Pod {
            let pod = json!({
                "metadata": {"namespace": "shop", "name": name},
                "spec": {"containers": [], "hostNetwork": host},
                "status": {"phase": phase, "podIPs": [{"ip": "10.40.1.9"}, {"ip": "fd00::9"}]},
            });
            serde_json::from_value(pod).expect("a pod")
        };
        let mut found = Found::default();
        found.add_pods(&[
            pod("over", "Succeeded", false),
            pod("host", "Running", true),
            pod("web", "Running", false),
        ]);
        let address: IpAddr = "fd00::9".parse().expect("an address");
        assert_eq!(found.0[&address].as_deref(), Some("shop/web"));
        found.add_pods(&[pod("other", "Running", false)]);
        assert_eq!(found.0[&address], None, "it is one of two");
    }
}
