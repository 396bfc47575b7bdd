// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clusters from YAML, for the unit tests.

use std::net::IpAddr;

use proxy_common::{EndpointSet, FrontendKind, V4};

use crate::{
    model::{Converter, Kind, Object, ObjectKey},
    object::{ObjectName, Warning},
    plan::{FamilyPlan, ServicePlan},
    planner::{claims::Claims, plan_service},
    tracker::ClusterState,
    watch::{Change, documents},
};

pub(crate) const NODE: &str = "node-a";

/// The objects of a YAML text and every warning about them.
pub(crate) fn objects(yaml: &str) -> (Vec<Object>, Vec<Warning>) {
    let content = documents::read("test.yaml", yaml, &mut Converter::new(NODE)).expect("readable");
    let mut warnings = content.warnings;
    let mut objects = Vec::new();
    for (object, about) in content.objects {
        warnings.extend(about);
        objects.push(object);
    }
    (objects, warnings)
}

/// The warnings about the objects of a YAML text, one line each.
pub(crate) fn complaints(yaml: &str) -> Vec<String> {
    let (_, warnings) = objects(yaml);
    warnings.iter().map(ToString::to_string).collect()
}

pub(crate) fn name(text: &str) -> ObjectName {
    let (namespace, name) = text.split_once('/').expect("namespace/name");
    ObjectName::new(namespace, name)
}

/// A cluster as the node `node-a` sees it.
pub(crate) struct Cluster {
    pub(crate) state: ClusterState,
    pub(crate) claims: Claims,
}

impl Cluster {
    pub(crate) fn new(yaml: &str) -> Self {
        let mut cluster = Self {
            state: ClusterState::new(NODE),
            claims: Claims::default(),
        };
        cluster.apply(yaml);
        cluster
    }
    /// Applies objects; returns the services that must be planned anew.
    pub(crate) fn apply(&mut self, yaml: &str) -> Vec<String> {
        for object in objects(yaml).0 {
            self.state.fold(Change::Upsert(object));
        }
        self.settle()
    }
    pub(crate) fn delete(&mut self, kind: Kind, text: &str) -> Vec<String> {
        let name = name(text);
        self.state.fold(Change::Delete(ObjectKey { kind, name }));
        self.settle()
    }
    fn settle(&mut self) -> Vec<String> {
        let mut dirty = self.state.take_dirty();
        for name in dirty.clone() {
            let (service, _) = self.state.service(&name);
            dirty.extend(self.claims.update(&name, service));
        }
        dirty.sort();
        dirty.dedup();
        dirty.iter().map(ToString::to_string).collect()
    }
    pub(crate) fn plan(&self, text: &str) -> (ServicePlan, Vec<Warning>) {
        let (service, slices) = self.state.service(&name(text));
        let service = service.expect("the service is known");
        plan_service(service, slices, self.state.view(), &self.claims)
    }
}

/// The backends in a set, as text.
pub(crate) fn backends(family: &FamilyPlan<V4>, set: EndpointSet) -> Vec<String> {
    let chosen = family.backends.iter().filter(|b| b.sets.intersects(set));
    chosen
        .map(|b| format!("{}:{}", IpAddr::from(b.address), b.port.host()))
        .collect()
}

/// The frontends of a family, as text: kind, address, port.
pub(crate) fn frontends(family: &FamilyPlan<V4>) -> Vec<String> {
    let text = |kind: FrontendKind| match kind {
        FrontendKind::ClusterIp => "cluster",
        FrontendKind::ExternalIp => "external",
        FrontendKind::LoadBalancer => "balancer",
        FrontendKind::NodePort => "node",
        FrontendKind::Unserved => "unserved",
        FrontendKind::Echo => "echo",
    };
    let all = family.frontends.iter();
    all.map(|f| {
        let address = IpAddr::from(f.address);
        format!("{} {address}:{}", text(f.kind()), f.port.host())
    })
    .collect()
}

/// An endpoint of a slice in flow style: last octet of its address, node, and more fields.
pub(crate) fn endpoint(octet: u8, node: &str, rest: &str) -> String {
    format!("    - {{addresses: [10.40.1.{octet}], nodeName: {node}{rest}}}\n")
}

/// A slice `shop/<slice>` of `shop/<service>` with a port `http` 8080.
pub(crate) fn slice(slice: &str, service: &str, endpoints: &[String]) -> String {
    let endpoints = endpoints.concat();
    format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: {slice}, namespace: shop, labels: {{kubernetes.io/service-name: {service}}}}}\naddressType: IPv4\nports: [{{name: http, protocol: TCP, port: 8080}}]\nendpoints:\n{endpoints}---\n",
    )
}

/// A service `shop/<service>` with a port `http` 80 and more fields of its spec, in flow style.
pub(crate) fn service(service: &str, cluster_ip: &str, rest: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {service}, namespace: shop}}\nspec: {{clusterIP: {cluster_ip}, ports: [{{name: http, port: 80}}]{rest}}}\n---\n",
    )
}
