// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Builds clusters from YAML for the unit tests.

#[cfg(test)]
mod plans;

use crate::{
    apply::{Failure, Refusal},
    change::Change,
    documents,
    model::{Converter, Kind, Object, ObjectKey},
    object::{ObjectName, Warning},
    planner::claims::Claims,
    tracker::ClusterState,
};

#[cfg(test)]
pub(crate) use plans::*;

pub const NODE: &str = "node-a";

/// Returns the objects of a YAML text and every warning about them.
pub fn objects(yaml: &str) -> (Vec<Object>, Vec<Warning>) {
    let mut converter = Converter::new(NODE);
    (converter.gateways, converter.keeps_made) = (true, true);
    let content = documents::read("test.yaml", yaml, &mut converter).expect("readable");
    let mut warnings = content.warnings;
    let mut objects = Vec::new();
    for (object, about) in content.objects {
        warnings.extend(about);
        objects.push(object);
    }
    (objects, warnings)
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
