// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Leaves an API server that is alive and useless, as one whose etcd is away: the connection of a
//! request without an answer, or of several bad answers in a row, serves no more requests, and the
//! next one goes to another server. A layer around the HTTP client, made by `client`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use http::{Response, StatusCode};
use hyper_util::client::legacy::connect::CaptureConnection;
use tokio::time::timeout;
use tower::BoxError;

/// How long to wait for the beginning of an answer. KUBE: a server gives up after 60 s.
const ANSWER: Duration = Duration::from_secs(65);
/// So many bad answers in a row are of a useless server.
const BAD_ANSWERS: u32 = 5;

/// Counts the bad answers since the last good one; clones share the count.
#[derive(Clone, Default)]
pub(super) struct Breaker(Arc<AtomicU32>);

/// The connection of a request that has no answer yet. If the request is given up, it is poisoned.
struct Pending(Option<CaptureConnection>);

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(connection) = &self.0 {
            poison(connection);
        }
    }
}

impl Breaker {
    /// Waits for the answer to a request, and adds its connection to the answer's extensions.
    pub(super) async fn answer<A, E: Into<BoxError>>(
        self,
        answer: impl Future<Output = Result<Response<A>, E>>,
        connection: CaptureConnection,
    ) -> Result<Response<A>, BoxError> {
        let mut pending = Pending(Some(connection));
        let answer = timeout(ANSWER, answer).await?;
        let mut answer = answer.map_err(Into::<BoxError>::into)?;
        if !self.is_useless_after(answer.status())
            && let Some(connection) = pending.0.take()
        {
            answer.extensions_mut().insert(connection);
        }
        Ok(answer)
    }

    /// Notes an answer; true if it is the last of so many bad ones.
    fn is_useless_after(&self, status: StatusCode) -> bool {
        let is_bad = status.is_server_error() || status == StatusCode::UNAUTHORIZED;
        let before = self.0.load(Ordering::Relaxed);
        let in_a_row = if is_bad { before + 1 } else { 0 };
        self.0.store(in_a_row % BAD_ANSWERS, Ordering::Relaxed);
        in_a_row == BAD_ANSWERS
    }
}

/// Lets no more requests go by a connection. Those under way go on.
pub(super) fn poison(connection: &CaptureConnection) {
    if let Some(connected) = &*connection.connection_metadata() {
        connected.poison();
    }
}
