// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The agent's HTTP answers: its own health, and that of services on their health check node ports.

pub mod health;
pub mod service_health;

#[cfg(test)]
mod tests;

use axum::Router;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Answers on a listener until told to stop; connections under way are finished.
pub(crate) async fn serve(listener: TcpListener, router: Router, stop: CancellationToken) {
    let stopped = async move { stop.cancelled().await };
    let serving = axum::serve(listener, router).with_graceful_shutdown(stopped);
    // Its future never returns an error: accept failures are retried within.
    _ = serving.await;
}
