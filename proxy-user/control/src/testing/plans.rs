// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the unit tests of this crate ask of a cluster, and show of its plans.

use std::net::IpAddr;

use proxy_common::{EndpointSet, V4};

use super::{Cluster, name, objects};
use crate::{
    documents,
    gateway::Write,
    model::{Converter, Object},
    object::{ObjectName, Warning},
    plan::{FamilyPlan, PortPlan, ServicePlan},
    planner::{
        gateway::{GatewayPlan, plan_gateway},
        plan_service,
    },
};

/// Converts the first object of a YAML text with this converter; returns it with the warnings about
/// it, None if the text has no object.
pub(crate) fn converted(yaml: &str, converter: &mut Converter) -> Option<(Object, Vec<Warning>)> {
    let content = documents::read("test.yaml", yaml, converter).expect("readable");
    content.objects.into_iter().next()
}

/// Returns the warnings about the objects of a YAML text, one line each.
pub(crate) fn complaints(yaml: &str) -> Vec<String> {
    let (_, warnings) = objects(yaml);
    warnings.iter().map(ToString::to_string).collect()
}

impl Cluster {
    pub fn plan(&self, text: &str) -> (ServicePlan, Vec<Warning>) {
        self.plan_of(&name(text))
    }
    pub fn plan_of(&self, name: &ObjectName) -> (ServicePlan, Vec<Warning>) {
        let (service, slices) = self.state.service(name);
        let service = service.expect("the service is known");
        plan_service(service, slices, &self.state.view, &self.claims)
    }
    /// Returns the plan of a Gateway, by the name of its plan.
    pub fn gateway_plan(&self, text: &str) -> GatewayPlan {
        let served = self.state.gateway(&name(text));
        let served = served.expect("the Gateway is known");
        let slices = |name: &ObjectName| self.state.service(name).1;
        plan_gateway(served, slices, &self.state.view, &self.claims)
    }
    /// Plans every Gateway, and returns what is to be written about changed objects, each as kind
    /// and name, and the warnings about them.
    pub fn report(&mut self) -> (Vec<(String, Option<Write>)>, Vec<String>) {
        for plan in self.state.served() {
            if self.state.gateway(&plan).is_some() {
                let planned = self.gateway_plan(&plan.to_string());
                self.state.gateways.note_refusals(&plan, planned.refusals);
            }
        }
        let (mut writes, mut warnings) = (Vec::new(), Vec::new());
        for news in self.state.report() {
            warnings.extend(news.warnings.iter().map(ToString::to_string));
            writes.push((news.object.to_string(), news.write));
        }
        (writes, warnings)
    }
}

/// Returns the backends in an endpoint set, each as `address:port`.
pub(crate) fn backends(family: &FamilyPlan<V4>, set: EndpointSet) -> Vec<String> {
    let chosen = family.backends.iter().filter(|b| b.sets.intersects(set));
    chosen
        .map(|b| format!("{}:{}", IpAddr::from(b.address), b.port.host()))
        .collect()
}

/// Returns the backends in an endpoint set, each with the last octet of its address and its weight
/// in the set.
pub(crate) fn weights(port: &PortPlan, set: EndpointSet) -> Vec<(u8, u32)> {
    let backends = port.v4.backends.iter();
    let members = backends.filter(|backend| backend.sets.intersects(set));
    let each = members.map(|backend| (backend.address.octets[3], backend.weight_in(set)));
    each.collect()
}

/// Returns the frontends of a family, each as a text with kind, address and port.
pub(crate) fn frontends(family: &FamilyPlan<V4>) -> Vec<String> {
    let all = family.frontends.iter();
    all.map(|f| {
        let address = IpAddr::from(f.address);
        format!("{:?} {address}:{}", f.flags.kind(), f.port.host())
    })
    .collect()
}

/// Returns an endpoint of a slice in flow style: last octet of its address, node, and more fields.
pub(crate) fn endpoint(octet: u8, node: &str, rest: &str) -> String {
    format!("    - {{addresses: [10.40.1.{octet}], nodeName: {node}{rest}}}\n")
}

/// Returns an object of the namespace `shop` that was created on this day.
pub(crate) fn created(day: &str, object: &str) -> String {
    let time = format!("namespace: shop, creationTimestamp: '{day}T00:00:00Z'");
    object.replace("namespace: shop", &time)
}

/// Returns a slice `shop/<slice>` of `shop/<service>` with a port `http` 8080.
pub(crate) fn slice(slice: &str, service: &str, endpoints: &[String]) -> String {
    let endpoints = endpoints.concat();
    format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: {slice}, namespace: shop, labels: {{kubernetes.io/service-name: {service}}}}}\naddressType: IPv4\nports: [{{name: http, protocol: TCP, port: 8080}}]\nendpoints:\n{endpoints}---\n",
    )
}
