// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Builds clusters from YAML for the unit tests.

use std::net::IpAddr;

use proxy_common::{EndpointSet, FrontendKind, V4};

use crate::{
    apply::{Failure, Refusal},
    change::Change,
    documents,
    gateway::Write,
    model::{Converter, Kind, Object, ObjectKey},
    object::{ObjectName, Warning},
    plan::{FamilyPlan, ServicePlan},
    planner::{
        claims::Claims,
        gateway::{GatewayPlan, plan_gateway},
        plan_service,
    },
    tracker::ClusterState,
};

pub const NODE: &str = "node-a";

/// Returns the objects of a YAML text and every warning about them.
pub fn objects(yaml: &str) -> (Vec<Object>, Vec<Warning>) {
    let mut converter = Converter::new(NODE);
    converter.gateways = true;
    let content = documents::read("test.yaml", yaml, &mut converter).expect("readable");
    let mut warnings = content.warnings;
    let mut objects = Vec::new();
    for (object, about) in content.objects {
        warnings.extend(about);
        objects.push(object);
    }
    (objects, warnings)
}

/// Converts the first object of a YAML text with this converter; returns it with the warnings about
/// it, None if the text has no object.
pub fn converted(yaml: &str, converter: &mut Converter) -> Option<(Object, Vec<Warning>)> {
    let content = documents::read("test.yaml", yaml, converter).expect("readable");
    content.objects.into_iter().next()
}

/// Returns the warnings about the objects of a YAML text, one line each.
pub fn complaints(yaml: &str) -> Vec<String> {
    let (_, warnings) = objects(yaml);
    warnings.iter().map(ToString::to_string).collect()
}

/// Returns the failure of a service for which a map has no room.
pub fn full(name: &ObjectName) -> Failure {
    let full = Refusal::Full {
        map: "frontends",
        capacity: 0,
        key: "frontends",
        detail: String::new(),
    };
    Failure::of_service(name, full)
}

pub fn name(text: &str) -> ObjectName {
    let (namespace, name) = text.split_once('/').expect("namespace/name");
    ObjectName::new(namespace, name)
}

/// A cluster as the node `node-a` sees it.
pub struct Cluster {
    pub state: ClusterState,
    pub claims: Claims,
}

impl Cluster {
    pub fn new(yaml: &str) -> Self {
        let mut cluster = Self {
            state: ClusterState::new(NODE),
            claims: Claims::default(),
        };
        cluster.state.gateways.set_services(true);
        cluster.apply(yaml);
        cluster
    }
    /// Applies objects; returns the services that must be planned again.
    pub fn apply(&mut self, yaml: &str) -> Vec<String> {
        self.take(objects(yaml).0)
    }
    pub fn take(&mut self, objects: impl IntoIterator<Item = Object>) -> Vec<String> {
        for object in objects {
            self.state.fold(Change::Upsert(object));
        }
        self.settle()
    }
    pub fn delete(&mut self, kind: Kind, text: &str) -> Vec<String> {
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

/// Returns the rows of a table, with `|` between the cells; an indented line belongs to the row
/// above it.
pub fn rows<const N: usize>(table: &str) -> Vec<[String; N]> {
    let table = table.trim().replace("\n  ", " ");
    let row = |line: &str| {
        let cells: Vec<_> = line.split('|').map(|cell| cell.trim().to_owned()).collect();
        cells.try_into().expect("the number of cells")
    };
    table.lines().map(row).collect()
}

/// Returns the backends in an endpoint set, each as `address:port`.
pub fn backends(family: &FamilyPlan<V4>, set: EndpointSet) -> Vec<String> {
    let chosen = family.backends.iter().filter(|b| b.sets.intersects(set));
    chosen
        .map(|b| format!("{}:{}", IpAddr::from(b.address), b.port.host()))
        .collect()
}

/// Returns the frontends of a family, each as a text with kind, address and port.
pub fn frontends(family: &FamilyPlan<V4>) -> Vec<String> {
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

/// Returns an endpoint of a slice in flow style: last octet of its address, node, and more fields.
pub fn endpoint(octet: u8, node: &str, rest: &str) -> String {
    format!("    - {{addresses: [10.40.1.{octet}], nodeName: {node}{rest}}}\n")
}

/// Returns a slice `shop/<slice>` of `shop/<service>` with a port `http` 8080.
pub fn slice(slice: &str, service: &str, endpoints: &[String]) -> String {
    let endpoints = endpoints.concat();
    format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: {slice}, namespace: shop, labels: {{kubernetes.io/service-name: {service}}}}}\naddressType: IPv4\nports: [{{name: http, protocol: TCP, port: 8080}}]\nendpoints:\n{endpoints}---\n",
    )
}

/// Returns a service `shop/<service>` with a port `http` 80 and more fields of its spec, in flow
/// style.
pub fn service(service: &str, cluster_ip: &str, rest: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {service}, namespace: shop}}\nspec: {{clusterIP: {cluster_ip}, ports: [{{name: http, port: 80}}]{rest}}}\n---\n",
    )
}

/// The texts that [`damaged`] inserts, with commas between them.
const TOKENS: &str = "null,[],{},-1,65536,4294967296,~,\"\",&a ,*a,!!int ,|,>,\t,\0,é,: ,- ,1e999,\
    0x10,::,256.1.1.1,/33,true,---\n,\n,{,]";

/// Returns a text with parts removed, repeated or replaced. Each edit is a position, a kind of
/// edit, and a number from which the length and the inserted text follow.
pub fn damaged(text: &str, edits: &[(u16, u8, u8)]) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    let tokens: Vec<_> = TOKENS.split(',').collect();
    for (place, kind, more) in edits {
        let start = usize::from(*place) % (chars.len() + 1);
        let end = chars.len().min(start + 1 + usize::from(more % 32));
        let token = tokens[usize::from(*more) % tokens.len()].chars();
        match kind % 4 {
            0 => drop(chars.drain(start..end)),
            1 => drop(chars.splice(start..start, token)),
            2 => drop(chars.splice(start..end, token)),
            _ => {
                let repeated: Vec<_> = chars[start..end].to_vec();
                chars.splice(start..start, repeated);
            }
        }
    }
    chars.into_iter().collect()
}
