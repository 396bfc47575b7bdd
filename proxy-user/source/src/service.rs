// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Looks up once what Kubernetes has of one service: the Service, its slices, slices that seem to
//! be meant for it, and its pods. Called by `portolan explain`.

use control::model::endpoint::LABEL_SERVICE;
use k8s_openapi::{
    api::{
        core::v1::{Pod, Service},
        discovery::v1::EndpointSlice,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Api, Client, api::ListParams};

use super::{
    SourceError,
    api_server::Access,
    named::{Directory, answered, client},
};

/// What Kubernetes has of one service.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ServiceObjects {
    /// None if there is no such Service.
    pub service: Option<Service>,
    /// The slices that belong to the service.
    pub slices: Vec<EndpointSlice>,
    /// If no slice belongs to it: slices that seem to be meant for it, but are in another
    /// namespace or do not have its label.
    pub strays: Vec<EndpointSlice>,
    /// The pods that the Service's selector matches, as far as they are known.
    pub pods: Vec<Pod>,
    /// True if `pods` has all that the selector matches; false for who may not list pods, as the
    /// agent's service account.
    pub has_all_pods: bool,
}

impl Directory {
    /// Returns what there is of a service.
    pub async fn service(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<ServiceObjects, SourceError> {
        match self {
            Self::Server(access) => {
                let client = client(access).await?;
                ask(access, &client, namespace, name).await
            }
            Self::Folder(_) => {
                let pods: Vec<Pod> = self.objects("Pod")?;
                let (services, slices) = (self.objects("Service")?, self.objects("EndpointSlice")?);
                let mut found = select(services, slices, namespace, name);
                // A folder for an agent has no pods.
                found.has_all_pods = !pods.is_empty();
                found.add_pods(pods, namespace);
                Ok(found)
            }
        }
    }
}

async fn ask(
    access: &Access,
    client: &Client,
    namespace: &str,
    name: &str,
) -> Result<ServiceObjects, SourceError> {
    let services: Api<Service> = Api::namespaced(client.clone(), namespace);
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), namespace);
    let labelled = ListParams::default().labels(&format!("{LABEL_SERVICE}={name}"));
    // The agent's service account may list services, and not get one.
    let named = ListParams::default().fields(&format!("metadata.name={name}"));
    let services = answered(access, services.list(&named)).await?.items;
    let mut listed = answered(access, slices.list(&labelled)).await?.items;
    if listed.is_empty() {
        let everywhere: Api<EndpointSlice> = Api::all(client.clone());
        let beside = answered(access, slices.list(&ListParams::default())).await;
        let elsewhere = answered(access, everywhere.list(&labelled)).await;
        // Without the right to list them, they are not known.
        let more = [beside, elsewhere].into_iter().flatten();
        listed.extend(more.flat_map(|list| list.items));
    }
    let mut found = select(services, listed, namespace, name);
    if let Some(selector) = found.service.as_ref().and_then(selector) {
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let selected = ListParams::default().labels(&selector);
        if let Ok(list) = answered(access, pods.list(&selected)).await {
            found.has_all_pods = true;
            found.add_pods(list.items, namespace);
        }
    }
    Ok(found)
}

impl ServiceObjects {
    /// Adds those pods that the Service's selector matches.
    fn add_pods(&mut self, pods: Vec<Pod>, namespace: &str) {
        let service = self.service.as_ref();
        let selector = service.and_then(|service| service.spec.as_ref()?.selector.as_ref());
        let Some(selector) = selector.filter(|selector| !selector.is_empty()) else {
            return;
        };
        let matches = |pod: &Pod| {
            let labels: Vec<_> = pod.metadata.labels.iter().flatten().collect();
            is_in(&pod.metadata, namespace) && selector.iter().all(|pair| labels.contains(&pair))
        };
        self.pods.extend(pods.into_iter().filter(matches));
    }
}

/// Returns a Service's selector, as kubectl takes it; None if it has none.
pub fn selector(service: &Service) -> Option<String> {
    let pairs = service.spec.as_ref()?.selector.as_ref()?;
    let pairs: Vec<_> = pairs
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    (!pairs.is_empty()).then(|| pairs.join(","))
}

/// Selects what concerns the service.
fn select(
    services: Vec<Service>,
    slices: Vec<EndpointSlice>,
    namespace: &str,
    name: &str,
) -> ServiceObjects {
    let mut services = services.into_iter();
    let service = services
        .find(|one| is_in(&one.metadata, namespace) && one.metadata.name.as_deref() == Some(name));
    let is_labelled = |slice: &EndpointSlice| service_of(slice) == Some(name);
    let is_here = |slice: &EndpointSlice| is_in(&slice.metadata, namespace);
    let is_own = |slice: &EndpointSlice| is_labelled(slice) && is_here(slice);
    let (slices, mut strays): (Vec<_>, Vec<_>) = slices.into_iter().partition(is_own);
    let is_stray =
        |slice: &EndpointSlice| is_labelled(slice) || (is_here(slice) && seems_meant(slice, name));
    strays.retain(|slice| slices.is_empty() && is_stray(slice));
    ServiceObjects {
        service,
        slices,
        strays,
        ..ServiceObjects::default()
    }
}

/// Returns the service that a slice's label names.
pub fn service_of(slice: &EndpointSlice) -> Option<&str> {
    let labels = slice.metadata.labels.as_ref()?;
    labels.get(LABEL_SERVICE).map(String::as_str)
}

/// Returns whether a slice without the label of the service seems to be meant for it: by its owner,
/// or, if nobody owns it, by its name.
fn seems_meant(slice: &EndpointSlice, service: &str) -> bool {
    let name = slice.metadata.name.as_deref().unwrap_or_default();
    let begins_with = |start: &str| {
        let rest = name.strip_prefix(start);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    let mut owners = slice.metadata.owner_references.iter().flatten().peekable();
    if owners.peek().is_some() {
        return owners.any(|owner| owner.kind == "Service" && owner.name == service);
    }
    begins_with(service) && !service_of(slice).is_some_and(begins_with)
}

fn is_in(metadata: &ObjectMeta, namespace: &str) -> bool {
    metadata.namespace.as_deref().unwrap_or("default") == namespace
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECTS: &str = "apiVersion: v1
kind: List
items:
- {kind: Service, metadata: {name: cart, namespace: shop}, spec: {selector: {app: cart}}}
- {kind: Service, metadata: {name: cart, namespace: other}}
- {kind: Pod, metadata: {name: cart-a, namespace: shop, labels: {app: cart, more: one}}}
- {kind: Pod, metadata: {name: pay-a, namespace: shop, labels: {app: pay}}}
- {kind: Pod, metadata: {name: cart-b, namespace: other, labels: {app: cart}}}
- {kind: EndpointSlice, metadata: {name: cart-1, namespace: shop, labels: {kubernetes.io/service-name: card}}, addressType: IPv4, endpoints: []}
- {kind: EndpointSlice, metadata: {name: x, namespace: third, labels: {kubernetes.io/service-name: cart}}, addressType: IPv4, endpoints: []}
- {kind: EndpointSlice, metadata: {name: cart-more-1, namespace: shop, labels: {kubernetes.io/service-name: cart-more}}, addressType: IPv4, endpoints: []}
- {kind: EndpointSlice, metadata: {name: carts-1, namespace: shop, labels: {kubernetes.io/service-name: carts}}, addressType: IPv4, endpoints: []}
";

    fn names<'a>(all: impl IntoIterator<Item = &'a ObjectMeta>) -> Vec<&'a str> {
        let names = all.into_iter().filter_map(|one| one.name.as_deref());
        names.collect()
    }

    async fn asked(objects: &str) -> ServiceObjects {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("all.yaml"), objects).expect("a file");
        let directory = Directory::Folder(folder.path().into());
        directory.service("shop", "cart").await.expect("readable")
    }

    #[tokio::test]
    async fn a_services_pods_are_those_of_its_selector_and_namespace() {
        let found = asked(OBJECTS).await;
        let service = found.service.expect("the Service");
        assert_eq!(selector(&service).as_deref(), Some("app=cart"));
        assert!(found.has_all_pods);
        let pods = found.pods.iter().map(|pod| &pod.metadata);
        assert_eq!(names(pods), ["cart-a"]);
        let lines = OBJECTS.lines().filter(|line| !line.contains("kind: Pod"));
        let found = asked(&lines.collect::<Vec<_>>().join("\n")).await;
        assert!(!found.has_all_pods, "the folder has none");
    }

    #[tokio::test]
    async fn slices_that_seem_to_be_meant_are_found_only_if_none_belongs_to_the_service() {
        let found = asked(OBJECTS).await;
        assert_eq!(found.slices, []);
        let strays = found.strays.iter().map(|slice| &slice.metadata);
        assert_eq!(names(strays), ["cart-1", "x"]);
        let found = asked(&OBJECTS.replace("service-name: card", "service-name: cart")).await;
        let slices = found.slices.iter().map(|slice| &slice.metadata);
        assert_eq!(names(slices), ["cart-1"]);
        assert_eq!(found.strays, []);
    }
}
