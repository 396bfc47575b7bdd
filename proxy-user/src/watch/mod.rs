// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where objects come from: the API server or a folder of manifests. Each lists everything once, then follows
//! changes. `agent` starts one of the two and hands its batches to `syncer`.

pub mod api_server;
pub mod documents;
pub mod manifests;
pub mod named;
mod pods;

use std::future::Future;

use k8s_openapi::jiff::Timestamp;
use tokio::sync::mpsc;

use self::api_server::Requests;
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
    /// Every object has been sent, with this batch or before. Until then nothing may be removed from the maps.
    /// Never true while something could not be read.
    pub complete: bool,
    /// This batch ends the first list, as far as it could be read: the agent can be ready now.
    pub listed: bool,
    /// Trigger times of the endpoint changes in this batch, as far as known.
    pub triggers: Vec<Trigger>,
}

/// Lists and follows the cluster's objects.
pub trait ObjectSource: Send + 'static {
    /// Counts of its requests to an API server, if it has one.
    fn requests(&self) -> Requests {
        Requests::default()
    }

    /// Sends every object, then every change, until the receiver is gone or following has become impossible.
    fn run(
        self,
        batches: mpsc::Sender<Batch>,
    ) -> impl Future<Output = Result<(), SourceError>> + Send;
}

/// Why objects cannot be followed.
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
        "cannot watch the manifest folder {folder} for changes; raise the sysctls fs.inotify.max_user_watches and fs.inotify.max_user_instances"
    )]
    Watch {
        folder: String,
        #[source]
        source: notify::Error,
    },
    #[error(
        "no API server and no manifests given: pass the API server's own address with --master https://ADDRESS:6443 (not its service address, which works only once this agent serves it), --kubeconfig FILE, or --manifests DIR"
    )]
    NoAddress,
    #[error("cannot use the API server {access}: {reason}; check --kubeconfig and --master")]
    Access { access: String, reason: String },
    #[error("all watches on the API server ended unexpectedly; restart portolan")]
    WatchEnded,
}
