// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Changes of Kubernetes objects, as the API server or a manifest folder sends them: in batches
//! that take effect together. `syncer` receives them.

use k8s_openapi::jiff::Timestamp;

use crate::{
    model::{Kind, Object, ObjectKey},
    object::Warning,
    warnings::Topic,
};

/// A change of one Kubernetes object.
#[derive(Clone, PartialEq, Debug)]
pub enum Change {
    /// The object is new, or replaces the one of the same kind and name.
    Upsert(Object),
    Delete(ObjectKey),
}

impl Change {
    /// The kind of the object.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Upsert(object) => object.kind(),
            Self::Delete(key) => key.kind,
        }
    }
}

/// A change of an EndpointSlice's endpoints: the time of the pod or service change that caused it.
/// For the latency metric.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trigger {
    pub time: Timestamp,
    /// True if the slice's endpoints are IPv6, false if IPv4.
    pub v6: bool,
}

/// Changes and warnings from a source of objects that take effect together.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Batch {
    pub changes: Vec<Change>,
    pub warnings: Vec<(Topic, Vec<Warning>)>,
    /// True if this and earlier batches have sent every object. Until then nothing may be removed
    /// from the maps. Never true while something could not be read.
    pub complete: bool,
    /// True for the one batch that ends the first list of all objects, as far as it could be read.
    /// The agent can then be ready.
    pub listed: bool,
    /// Of the changed EndpointSlices in this batch, those whose [`Trigger`] is known.
    pub triggers: Vec<Trigger>,
}

impl Batch {
    /// Returns the `uid_hash` of the object that a topic is about, if the batch has this object;
    /// otherwise 0.
    pub fn uid_hash(&self, topic: &Topic) -> u64 {
        let Topic::Object(key) = topic else { return 0 };
        let newest = self.changes.iter().rev().find_map(|change| match change {
            Change::Upsert(object) if object.key() == *key => Some(object),
            _ => None,
        });
        newest.map_or(0, Object::uid_hash)
    }
}
