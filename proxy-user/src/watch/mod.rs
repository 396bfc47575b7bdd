// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where objects come from. A source lists everything once, then follows; `agent` starts one and hands
//! its batches to `syncer`. The manifest folder is one source, the API server the other.

pub mod api_server;
pub mod documents;
pub mod manifests;

use std::future::Future;

use k8s_openapi::jiff::Timestamp;
use tokio::sync::mpsc;

use crate::{
    model::{Kind, Object, ObjectKey},
    object::Warning,
    warnings::Topic,
};

/// What happened to one object.
#[derive(Clone, PartialEq, Debug)]
pub enum Change {
    /// It is new or was replaced.
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

/// Changes that take effect together.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Batch {
    pub changes: Vec<Change>,
    pub warnings: Vec<(Topic, Vec<Warning>)>,
    /// With this batch every object that the source can name has been told. Until then what is in the
    /// maps already must stay; a source that could not read everything never says so.
    pub complete: bool,
    /// With this batch the source has told all it could read: the agent is as ready as it can be.
    pub listed: bool,
    /// When endpoints changed that these changes tell of, as far as it is known.
    pub triggers: Vec<Timestamp>,
}

/// A source of objects.
pub trait Source: Send + 'static {
    /// Sends everything, then what changes, until the receiver is gone or the source cannot go on.
    fn run(
        self,
        batches: mpsc::Sender<Batch>,
    ) -> impl Future<Output = Result<(), SourceError>> + Send;
}

/// Why a source cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error(
        "cannot read the manifest folder {folder}; create it, or name another one with --manifests"
    )]
    Folder {
        folder: String,
        #[source]
        source: std::io::Error,
    },
    #[error(
        "cannot watch the manifest folder {folder} for changes; see fs.inotify.max_user_watches and max_user_instances"
    )]
    Watch {
        folder: String,
        #[source]
        source: notify::Error,
    },
    #[error(
        "no source of services: give the API server's own address with --master https://ADDRESS:6443 (its service address leads nowhere before we have served it), a --kubeconfig FILE, or a folder of manifests with --manifests DIR"
    )]
    NoAddress,
    #[error("cannot use the API server {access}: {reason}; check --kubeconfig and --master")]
    Access { access: String, reason: String },
    #[error("following the API server broke down")]
    WatchEnded,
}
