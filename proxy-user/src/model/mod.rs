// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Our own compact view of the Kubernetes objects, and the conversion from theirs. A source (`watch`)
//! converts what it reads and lets go of the original; a bad part of an object becomes a warning.

pub mod endpoint;
pub mod node;
pub mod parse;
pub mod service;

#[cfg(test)]
mod tests;

use std::{collections::HashSet, fmt, hash::Hash, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

pub use endpoint::{Conditions, Endpoint, EndpointSlice, Endpoints, SlicePort, ZoneHints};
pub use node::Node;
pub use service::{Service, ServicePort, SourceRanges};

use crate::object::{ObjectName, Warning};

/// KUBE: services and slices with this label are another proxy's, whatever its value.
pub(crate) const LABEL_PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
/// KUBE: services and slices with this label are not for proxies, whatever its value.
pub(crate) const LABEL_HEADLESS: &str = "service.kubernetes.io/headless";

/// The kinds of object that the agent reads.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    Node,
    Service,
    EndpointSlice,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Node => "Node",
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
        })
    }
}

/// Names an object; a node's namespace is empty.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ObjectKey {
    pub kind: Kind,
    pub name: ObjectName,
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Kind::Node => write!(f, "Node {}", self.name.name),
            kind => write!(f, "{kind} {}", self.name),
        }
    }
}

/// One object, shared by the source that read it and the cluster state.
#[derive(Clone, PartialEq, Debug)]
pub enum Object {
    Node(Arc<Node>),
    Service(Arc<Service>),
    EndpointSlice(Arc<EndpointSlice>),
}

impl Object {
    pub fn kind(&self) -> Kind {
        match self {
            Self::Node(_) => Kind::Node,
            Self::Service(_) => Kind::Service,
            Self::EndpointSlice(_) => Kind::EndpointSlice,
        }
    }
    pub fn name(&self) -> &ObjectName {
        match self {
            Self::Node(node) => &node.name,
            Self::Service(service) => &service.name,
            Self::EndpointSlice(slice) => &slice.name,
        }
    }
    pub fn key(&self) -> ObjectKey {
        ObjectKey {
            kind: self.kind(),
            name: self.name().clone(),
        }
    }
}

/// A converted object and what was wrong with the original.
pub type Converted<T> = (T, Vec<Warning>);

/// Turns Kubernetes' objects into ours. It knows the node it works for, so that "local" and "hinted for
/// this node" are single bits, and shares equal texts.
#[derive(Debug)]
pub struct Converter {
    pub(crate) node_name: Arc<str>,
    texts: Interner<str>,
    hints: Interner<ZoneHints>,
}

impl Converter {
    pub fn new(node_name: &str) -> Self {
        Self {
            node_name: node_name.into(),
            texts: Interner::default(),
            hints: Interner::default(),
        }
    }
    pub(crate) fn text(&mut self, text: &str) -> Arc<str> {
        self.texts.intern(text, |text| Arc::from(text))
    }
    pub(crate) fn zone_hints(&mut self, zones: &mut Vec<Arc<str>>) -> Option<Arc<ZoneHints>> {
        zones.sort_unstable();
        zones.dedup();
        (!zones.is_empty()).then(|| self.hints.intern(zones, |zones| Arc::new(zones.clone())))
    }
    /// The object's name; an object that is given none cannot be told from others.
    pub(crate) fn object_name(
        &mut self,
        kind: Kind,
        metadata: &ObjectMeta,
    ) -> Result<ObjectName, Warning> {
        let Some(name) = metadata.name.as_deref().filter(|name| !name.is_empty()) else {
            return Err(Warning {
                object: kind.to_string(),
                reason: "metadata.name is missing, so the object is ignored; give it a name".into(),
            });
        };
        let namespace = match (kind, metadata.namespace.as_deref()) {
            (Kind::Node, _) => "",
            // KUBE: what names no namespace is in "default".
            (_, None | Some("")) => "default",
            (_, Some(namespace)) => namespace,
        };
        Ok(ObjectName {
            namespace: self.text(namespace),
            name: self.text(name),
        })
    }
}

/// Hands out one shared copy of equal values and forgets those that nobody else holds.
#[derive(Debug)]
struct Interner<T: ?Sized> {
    known: HashSet<Arc<T>>,
    tidy_at: usize,
}

impl<T: ?Sized> Default for Interner<T> {
    fn default() -> Self {
        Self {
            known: HashSet::new(),
            tidy_at: 1024,
        }
    }
}

impl<T: ?Sized + Hash + Eq> Interner<T> {
    fn intern(&mut self, value: &T, share: impl FnOnce(&T) -> Arc<T>) -> Arc<T> {
        if let Some(known) = self.known.get(value) {
            return Arc::clone(known);
        }
        if self.known.len() >= self.tidy_at {
            self.known.retain(|known| Arc::strong_count(known) > 1);
            self.tidy_at = (2 * self.known.len()).max(1024);
        }
        let shared = share(value);
        self.known.insert(Arc::clone(&shared));
        shared
    }
}

/// How many warnings one object may cause; a slice can hold a thousand endpoints.
const MAX_COMPLAINTS: usize = 20;

/// Collects the warnings about one object.
pub(crate) struct Complaints {
    object: String,
    warnings: Vec<Warning>,
    unsaid: usize,
}

impl Complaints {
    pub(crate) fn about(kind: Kind, name: &ObjectName) -> Self {
        let object = match kind {
            Kind::Node => format!("Node {}", name.name),
            kind => format!("{kind} {name}"),
        };
        Self {
            object,
            warnings: Vec::new(),
            unsaid: 0,
        }
    }
    pub(crate) fn add(&mut self, reason: String) {
        if self.warnings.len() == MAX_COMPLAINTS {
            self.unsaid += 1;
            return;
        }
        let object = self.object.clone();
        let warning = Warning { object, reason };
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }
    pub(crate) fn into_warnings(mut self) -> Vec<Warning> {
        if self.unsaid > 0 {
            let unsaid = self.unsaid;
            self.warnings.push(Warning {
                object: self.object,
                reason: format!("{unsaid} more faults; correct those above to see them"),
            });
        }
        self.warnings
    }
}

/// Whether the object's labels leave it to others.
pub(crate) fn is_for_others(metadata: &ObjectMeta) -> bool {
    metadata.labels.as_ref().is_some_and(|labels| {
        labels.contains_key(LABEL_PROXY_NAME) || labels.contains_key(LABEL_HEADLESS)
    })
}
