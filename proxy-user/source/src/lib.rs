// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The sources of objects: the API server or a folder of manifests. Each lists everything once,
//! then follows changes. `agent` starts one of the two and gives its batches to `syncer`.
#![deny(unsafe_code)]

pub mod api_server;
pub mod manifests;
pub mod named;
mod pods;
pub mod service;

use std::{future::Future, path::Path};

use control::change::Batch;
use tokio::sync::mpsc;

use self::api_server::Requests;

/// Lists and follows the cluster's objects.
pub trait ObjectSource: Send + 'static {
    /// Returns the counts and durations of the source's requests to an API server; empty without
    /// one.
    fn requests(&self) -> Requests {
        Requests::default()
    }

    /// Fails if the source cannot begin as it is set. The agent asks before it makes anything in
    /// the kernel.
    fn check(&self) -> impl Future<Output = Result<(), SourceError>> {
        async { Ok(()) }
    }

    /// Sends every object, then every change. Ends when the receiver is gone or the source can no
    /// longer follow changes.
    fn run(
        self,
        batches: mpsc::Sender<Batch>,
    ) -> impl Future<Output = Result<(), SourceError>> + Send;
}

fn unreadable(folder: &Path, source: std::io::Error) -> SourceError {
    SourceError::Folder {
        folder: folder.display().to_string(),
        source,
    }
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
