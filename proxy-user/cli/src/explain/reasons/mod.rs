// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why an endpoint is left out, and why a service has none, in Kubernetes' words. Decides from the
//! objects that the API server or a folder has. Pure.

mod pods;
mod slices;

use std::{collections::BTreeSet, fmt::Display};

use k8s_openapi::{
    api::core::v1::{Pod, Service, ServicePort},
    apimachinery::pkg::util::intstr::IntOrString,
};
use proxy_common::Protocol;
use serde::Serialize;
use source::service::{ServiceObjects, selector, service_of};

pub(super) use slices::Entry;

use crate::finding::{Finding, texts};

/// A reason, and what to do about it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub(super) struct Reason {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) because: String,
    /// What to do; empty if this is as it should be.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) remedy: String,
}

impl Reason {
    /// Returns the reason of this code in `findings.txt`.
    pub(super) fn of(code: &str, words: &[&dyn Display]) -> Self {
        let [because, remedy] = texts(code, words);
        Self { because, remedy }
    }
}

/// The service port that is asked for, and what Kubernetes has of its service.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    pub(super) objects: &'a ServiceObjects,
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
        let code = match self.agent {
            true => "not-applied",
            false => "nobody-applies",
        };
        Reason::of(code, &[&what])
    }

    /// Returns why no endpoint of the service port may be used.
    pub(super) fn no_endpoint(&self) -> Reason {
        let (namespace, name, slices) = (self.namespace, self.name, &self.objects.slices);
        let Some(service) = &self.objects.service else {
            return self.not_applied("Kubernetes has no such Service any more");
        };
        if slices.is_empty() {
            return self.no_slice(service);
        }
        let family = self.family();
        let families = slices.iter().map(|slice| &slice.address_type);
        if families.clone().all(|one| one != family) {
            return Reason::of("other-family", &[&listed(families.cloned()), &family]);
        }
        let all = self.entries();
        if all.is_empty() {
            let reason = self.no_pod(service);
            return reason.unwrap_or_else(|| Reason::of("slices-empty", &[&namespace]));
        }
        if let Some(reason) = self.no_container_port(service)
            && all.iter().all(|entry| entry.port.is_err())
        {
            return reason;
        }
        let reasons: Vec<_> = all.iter().map(Entry::absent).collect();
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
        Reason { because, remedy }
    }

    /// Returns why no slice belongs to the service.
    fn no_slice(&self, service: &Service) -> Reason {
        let (namespace, name) = (self.namespace, self.name);
        if let Some(stray) = self.objects.strays.first() {
            let own = stray.metadata.name.as_deref().unwrap_or_default();
            let place = stray.metadata.namespace.as_deref().unwrap_or("default");
            let labelled = match service_of(stray) {
                Some(of) if place == namespace => format!("has the label of Service {of}"),
                None if place == namespace => "has no label kubernetes.io/service-name".to_owned(),
                _ => "is in another namespace".to_owned(),
            };
            let slice = format!("{place}/{own}");
            return Reason::of("slice-stray", &[&slice, &labelled, &namespace, &name]);
        }
        if selector(service).is_none() {
            return Reason::of("no-selector", &[&name]);
        }
        self.no_pod(service).unwrap_or_else(|| {
            let pods = match (self.objects.has_all_pods, self.objects.pods.len()) {
                (false, _) => String::new(),
                (true, 1) => ", although its selector matches 1 pod".to_owned(),
                (true, pods) => format!(", although its selector matches {pods} pods"),
            };
            Reason::of("no-slice", &[&pods])
        })
    }

    /// Returns the reason if the Service's selector matches no pod.
    fn no_pod(&self, service: &Service) -> Option<Reason> {
        let selector = selector(service)?;
        let pods = self.objects.has_all_pods.then_some(&self.objects.pods)?;
        let is_over = |pod: &Pod| {
            let phase = pod.status.as_ref().and_then(|one| one.phase.as_deref());
            matches!(phase, Some("Succeeded" | "Failed"))
        };
        let code = match pods.is_empty() {
            true => "no-pod",
            false => "pods-ended",
        };
        let is_none_left = pods.iter().all(is_over);
        is_none_left.then(|| Reason::of(code, &[&selector, &self.namespace]))
    }

    /// Returns the reason if the Service's targetPort is a name that no container has.
    fn no_container_port(&self, service: &Service) -> Option<Reason> {
        let IntOrString::String(target) = self.port_of(service)?.target_port.as_ref()? else {
            return None;
        };
        let pods = self.objects.pods.iter();
        let declared = pods.flat_map(|pod| pods::ports(pod, self.protocol));
        let has: Vec<_> = declared.filter_map(|port| port.name.clone()).collect();
        let is_missing = !self.objects.pods.is_empty() && !has.contains(target);
        is_missing.then(|| Reason::of("no-container-port", &[target, &listed(has)]))
    }

    /// Returns a note if the pods declare ports, and none of them is the endpoints' port.
    pub(super) fn undeclared(&self) -> Option<Finding> {
        let service = format!("{}/{}", self.namespace, self.name);
        self.entries().iter().find_map(|entry| {
            let number = *entry.port.as_ref().ok()?;
            let declared = pods::ports(entry.pod()?, self.protocol);
            let declared: Vec<_> = declared.map(|port| port.container_port).collect();
            let is_other = !declared.is_empty() && !declared.contains(&i32::from(number));
            let (name, declared) = (entry.name(), listed(declared.iter().map(i32::to_string)));
            is_other.then(|| Finding::of("undeclared", &[&service, &name, &number, &declared]))
        })
    }

    /// Returns a reason if a slice leads to another port than the Service's targetPort.
    pub(super) fn other_target(&self) -> Option<Reason> {
        let service = self.objects.service.as_ref()?;
        // Without a selector, who writes the slices decides.
        selector(service)?;
        let port = self.port_of(service)?;
        let target = match port.target_port {
            Some(IntOrString::Int(target)) => target,
            Some(IntOrString::String(_)) => return None,
            None => port.port,
        };
        self.entries().iter().find_map(|entry| {
            let number = *entry.port.as_ref().ok()?;
            let is_other = i32::from(number) != target;
            is_other.then(|| Reason::of("slice-decides", &[&target, &entry.slice_name(), &number]))
        })
    }

    /// Returns the nodes of the service's endpoints.
    pub(super) fn nodes(&self) -> BTreeSet<&str> {
        let slices = self.objects.slices.iter();
        let endpoints = slices.flat_map(|slice| &slice.endpoints);
        let nodes = endpoints.filter_map(|one| one.node_name.as_deref());
        nodes.collect()
    }

    fn port_of<'s>(&self, service: &'s Service) -> Option<&'s ServicePort> {
        let mut ports = service.spec.as_ref()?.ports.iter().flatten();
        ports.find(|port| {
            port.name.as_deref().unwrap_or_default() == self.port
                && slices::is_protocol(port.protocol.as_deref(), self.protocol)
        })
    }
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
