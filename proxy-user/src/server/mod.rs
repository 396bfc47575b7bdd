// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The agent's HTTP servers: its own health and metrics, and the health of services at their health check node
//! ports. Started by `agent`.

pub mod health;
pub mod metrics;
pub mod service_health;

#[cfg(test)]
mod tests;

use std::{io, net::SocketAddr};

use axum::Router;
use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::{TcpListener, TcpSocket};
use tokio_util::sync::CancellationToken;

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 128;

/// Listens with a socket that the bind hooks recognise as the agent's own: `reserveNodePorts` must not keep the
/// agent from a port.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    socket.set_reuseaddr(true)?;
    // Fails without the privilege; then there are no hooks either.
    let _ = setsockopt(&socket, sockopt::Mark, &proxy_common::settings::OWN_SOCKET);
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Answers on a listener until `stop`; then finishes open connections.
pub(crate) async fn serve(listener: TcpListener, router: Router, stop: CancellationToken) {
    let stopped = async move { stop.cancelled().await };
    let serving = axum::serve(listener, router).with_graceful_shutdown(stopped);
    // Its future never returns an error: accept failures are retried within.
    _ = serving.await;
}
