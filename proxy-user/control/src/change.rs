// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a source says: changes of objects, in batches that take effect together. In: the source.
//! Out: `syncer`.

use k8s_openapi::jiff::Timestamp;

use crate::{
    model::{Kind, Object, ObjectKey},
    object::Warning,
    warnings::Topic,
};

/// What happened to one object.
#[derive(Clone, PartialEq, Debug)]
pub enum Change {
    /// New or replaced.
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

/// When an endpoint of a slice has changed, which a pod's change or a service's had caused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trigger {
    pub time: Timestamp,
    /// Of IPv6 endpoints.
    pub v6: bool,
}

/// Changes that take effect together.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Batch {
    pub changes: Vec<Change>,
    pub warnings: Vec<(Topic, Vec<Warning>)>,
    /// Every object has been sent, with this batch or before. Until then nothing may be removed
    /// from the maps. Never true while something could not be read.
    pub complete: bool,
    /// This batch ends the first list, as far as it could be read: the agent can be ready now.
    pub listed: bool,
    /// Trigger times of the endpoint changes in this batch, as far as known.
    pub triggers: Vec<Trigger>,
}
