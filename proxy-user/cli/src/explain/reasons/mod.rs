// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why an endpoint is left out, and why a service has none, in Kubernetes' words. Decides from the
//! objects that the API server or a folder has. Pure.

mod pods;
mod slices;

use std::collections::BTreeSet;

use k8s_openapi::{
    api::core::v1::{Pod, Service, ServicePort},
    apimachinery::pkg::util::intstr::IntOrString,
};
use proxy_common::Protocol;
use source::service::{ServiceObjects, selector, service_of};

pub(super) use slices::{Entry, entries};

/// A reason, and what to do about it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Reason {
    pub(super) because: String,
    /// What to do; empty if this is as it should be.
    pub(super) remedy: String,
}

impl Reason {
    pub(super) fn new(because: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            because: because.into(),
            remedy: remedy.into(),
        }
    }
}

/// The service port that is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    /// The port's name; empty if it has none.
    pub(super) port: &'a str,
    pub(super) protocol: Protocol,
    pub(super) v6: bool,
    /// True if an agent runs, which applies what Kubernetes lists.
    pub(super) agent: bool,
}

impl Wanted<'_> {
    fn family(&self) -> &'static str {
        if self.v6 { "IPv6" } else { "IPv4" }
    }

    /// Returns the port as messages name it.
    fn port(&self) -> String {
        match self.port {
            "" => "port without a name".to_owned(),
            port => format!("port named {port}"),
        }
    }

    /// Returns the reason for something that Kubernetes has and the maps have not.
    fn not_applied(&self, what: &str) -> Reason {
        if self.agent {
            let remedy =
                "ask again in a moment; if it stays, see the agent's log: `portolan status`";
            Reason::new(format!("{what}: the agent has not applied it yet"), remedy)
        } else {
            let found = format!("{what}: no agent runs that would apply it");
            Reason::new(found, "start the agent")
        }
    }
}

/// Returns why no endpoint of a service port may be used.
pub(super) fn no_endpoint(objects: &ServiceObjects, wanted: Wanted<'_>) -> Reason {
    let (namespace, name) = (wanted.namespace, wanted.name);
    let Some(service) = &objects.service else {
        return wanted.not_applied("Kubernetes has no such Service any more");
    };
    if objects.slices.is_empty() {
        return no_slice(objects, service, wanted);
    }
    let family = wanted.family();
    let families = objects.slices.iter().map(|slice| &slice.address_type);
    if families.clone().all(|one| one != family) {
        let has = listed(families.cloned());
        return Reason::new(
            format!("its EndpointSlices list {has} addresses only, and {family} is asked for"),
            format!(
                "see whether its pods have {family} addresses, and the Service's ipFamilies; a slice that is written by hand needs addressType {family}"
            ),
        );
    }
    let all = entries(objects, wanted);
    if all.is_empty() {
        return no_pod(objects, service, wanted).unwrap_or_else(|| {
            Reason::new(
                "its EndpointSlices list no endpoint",
                format!("see why: `kubectl -n {namespace} get pods,endpointslices -o wide`"),
            )
        });
    }
    let reasons = all.iter().map(|entry| entry.absent(objects, wanted));
    let reasons: Vec<_> = reasons.collect();
    if let Some(reason) = no_container_port(objects, service, wanted)
        && all.iter().all(|entry| entry.port.is_err())
    {
        return reason;
    }
    let (first, endpoint) = (&reasons[0], all[0].name());
    let is_same = |reason: &Reason| reason.because == first.because;
    let which = match reasons.len() {
        1 => format!("its only endpoint, {endpoint}"),
        count if reasons.iter().all(is_same) => format!("all {count} endpoints"),
        count => format!("none of its {count} endpoints is usable; the first, {endpoint}"),
    };
    let because = format!("{which}: {}", first.because);
    let remedy = match first.remedy.as_str() {
        "" => format!(
            "see its endpoints: `kubectl -n {namespace} get endpointslices -l kubernetes.io/service-name={name} -o yaml`"
        ),
        remedy => remedy.to_owned(),
    };
    Reason::new(because, remedy)
}

/// Returns why no slice belongs to a service.
fn no_slice(objects: &ServiceObjects, service: &Service, wanted: Wanted<'_>) -> Reason {
    let (namespace, name) = (wanted.namespace, wanted.name);
    let label = format!("kubernetes.io/service-name: {name}");
    if let Some(stray) = objects.strays.first() {
        let own = stray.metadata.name.as_deref().unwrap_or_default();
        let place = stray.metadata.namespace.as_deref().unwrap_or("default");
        let labelled = match service_of(stray) {
            Some(of) if place == namespace => format!("has the label of Service {of}"),
            None if place == namespace => "has no label kubernetes.io/service-name".to_owned(),
            _ => "is in another namespace".to_owned(),
        };
        return Reason::new(
            format!("no EndpointSlice belongs to it; {place}/{own} {labelled}"),
            format!(
                "if that slice is meant, put it into namespace {namespace} with the label `{label}`"
            ),
        );
    }
    if selector(service).is_none() {
        return Reason::new(
            "it has no selector, and no EndpointSlice: nobody has written its endpoints",
            format!("give it a selector, or write an EndpointSlice with the label `{label}`"),
        );
    }
    no_pod(objects, service, wanted).unwrap_or_else(|| {
        let pods = match (objects.has_all_pods, objects.pods.len()) {
            (false, _) => String::new(),
            (true, 1) => ", although its selector matches 1 pod".to_owned(),
            (true, pods) => format!(", although its selector matches {pods} pods"),
        };
        Reason::new(
            format!("no EndpointSlice belongs to it{pods}"),
            "see whether kube-controller-manager runs, which writes them from the selector",
        )
    })
}

/// Returns the reason if a Service's selector matches no pod.
fn no_pod(objects: &ServiceObjects, service: &Service, wanted: Wanted<'_>) -> Option<Reason> {
    let selector = selector(service)?;
    let namespace = wanted.namespace;
    let pods = objects.has_all_pods.then_some(&objects.pods)?;
    let is_over = |pod: &Pod| {
        let phase = pod.status.as_ref().and_then(|one| one.phase.as_deref());
        matches!(phase, Some("Succeeded" | "Failed"))
    };
    if pods.is_empty() {
        return Some(Reason::new(
            format!("its selector {selector} matches no pod of namespace {namespace}"),
            format!(
                "correct the selector or the pods' labels: `kubectl -n {namespace} get pods --show-labels`"
            ),
        ));
    }
    pods.iter().all(is_over).then(|| {
        Reason::new(
            format!("all pods that its selector {selector} matches have ended"),
            format!("see why: `kubectl -n {namespace} get pods -l {selector}`"),
        )
    })
}

/// Returns the reason if the Service's targetPort is a name that no container has.
fn no_container_port(
    objects: &ServiceObjects,
    service: &Service,
    wanted: Wanted<'_>,
) -> Option<Reason> {
    let IntOrString::String(target) = port_of(service, wanted)?.target_port.as_ref()? else {
        return None;
    };
    let pods = objects.pods.iter();
    let declared = pods.flat_map(|pod| pods::ports(pod, wanted.protocol));
    let has: Vec<_> = declared.filter_map(|port| port.name.clone()).collect();
    let is_missing = !objects.pods.is_empty() && !has.contains(target);
    is_missing.then(|| {
        let has = listed(has);
        Reason::new(
            format!("no container of its pods has a port named {target}, which is its targetPort (they have: {has})"),
            "correct targetPort, or name the container's port",
        )
    })
}

/// Returns a sentence if the pods declare ports, and none of them is the endpoints' port.
pub(super) fn undeclared(objects: &ServiceObjects, wanted: Wanted<'_>) -> Option<String> {
    entries(objects, wanted).iter().find_map(|entry| {
        let number = *entry.port.as_ref().ok()?;
        let declared = pods::ports(entry.pod(objects)?, wanted.protocol);
        let declared: Vec<_> = declared.map(|port| port.container_port).collect();
        let is_other = !declared.is_empty() && !declared.contains(&i32::from(number));
        let (name, declared) = (entry.name(), listed(declared.iter().map(i32::to_string)));
        is_other.then(|| {
            format!(
                "no container of {name} declares port {number}, to which connections go (they declare: {declared}): see the Service's targetPort if nobody answers"
            )
        })
    })
}

/// Returns a reason if a slice leads to another port than the Service's targetPort.
pub(super) fn other_target(objects: &ServiceObjects, wanted: Wanted<'_>) -> Option<Reason> {
    let service = objects.service.as_ref()?;
    // Without a selector, who writes the slices decides.
    selector(service)?;
    let port = port_of(service, wanted)?;
    let target = match port.target_port {
        Some(IntOrString::Int(target)) => target,
        Some(IntOrString::String(_)) => return None,
        None => port.port,
    };
    entries(objects, wanted).iter().find_map(|entry| {
        let number = *entry.port.as_ref().ok()?;
        let slice = entry.slice_name();
        (i32::from(number) != target).then(|| {
            Reason::new(
                format!("its targetPort is {target}, and EndpointSlice {slice} leads to {number}: the slice decides"),
                "correct the slice if it is written by hand; otherwise see whether kube-controller-manager runs",
            )
        })
    })
}

pub(super) fn nodes(objects: &ServiceObjects) -> BTreeSet<String> {
    let endpoints = objects.slices.iter().flat_map(|slice| &slice.endpoints);
    endpoints.filter_map(|one| one.node_name.clone()).collect()
}

fn port_of<'a>(service: &'a Service, wanted: Wanted<'_>) -> Option<&'a ServicePort> {
    let mut ports = service.spec.as_ref()?.ports.iter().flatten();
    ports.find(|port| {
        port.name.as_deref().unwrap_or_default() == wanted.port
            && slices::is_protocol(port.protocol.as_deref(), wanted.protocol)
    })
}

/// Returns words as a list, each once; `none` if there are none.
fn listed(words: impl IntoIterator<Item = String>) -> String {
    let words: BTreeSet<_> = words.into_iter().collect();
    match words.is_empty() {
        true => "none".to_owned(),
        false => Vec::from_iter(words).join(", "),
    }
}

#[cfg(test)]
pub(super) mod tests;
