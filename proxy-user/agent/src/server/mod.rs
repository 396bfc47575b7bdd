// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The agent's HTTP servers: one for its own health, one for its metrics, and those at services'
//! health check node ports. Started by `agent`.

pub mod health;
pub mod metrics;
pub mod service_health;

#[cfg(test)]
mod tests;

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use axum::Router;
use config::Config;
use control::{
    object::Warning,
    warnings::{Topic, Warnings},
};
use nix::sys::socket::{setsockopt, sockopt};
use tokio::{
    net::{TcpListener, TcpSocket},
    time::sleep,
};
use tokio_util::sync::CancellationToken;

/// How many TCP connections to a server may wait to be accepted.
const BACKLOG: u32 = 128;

/// Returns a socket that listens at an address. KUBE: `0.0.0.0` and `::` both mean every address of
/// both families, as for Go's listeners; on a node without IPv6, every address of IPv4.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    if !address.ip().is_unspecified() {
        return listen_at(address, true);
    }
    let port = address.port();
    match listen_at((Ipv6Addr::UNSPECIFIED, port).into(), false) {
        Err(error) if is_without_ipv6(&error) => {
            listen_at((Ipv4Addr::UNSPECIFIED, port).into(), true)
        }
        listening => listening,
    }
}

/// True if a socket could not be made because the kernel has no IPv6, or was started with
/// ipv6.disable=1.
fn is_without_ipv6(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EAFNOSUPPORT)
}

/// Returns a socket that listens at an address of one family, or at `::` for both.
fn listen_at(address: SocketAddr, only_its_family: bool) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    socket.set_reuseaddr(true)?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        // The node's net.ipv6.bindv6only must not decide.
        setsockopt(&socket, sockopt::Ipv6V6Only, &only_its_family)?;
    }
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// One of the agent's own HTTP servers: for its health, for its metrics, or for probes.
pub struct Site {
    pub address: SocketAddr,
    /// The setting that contains `address`, for warnings.
    setting: &'static str,
    paths: &'static str,
    pub(crate) topic: Topic,
}

/// Pauses between attempts to listen: the first pause, which doubles each time, and the longest.
/// KUBE: kube-proxy tries every five seconds.
const PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(5)];

impl Site {
    /// Returns the agent's servers, without those that a canary was given no address for: the proxy
    /// beside it has the usual ports (see `Config::is_canary`).
    pub fn all(config: &Config) -> Vec<Self> {
        let health = Some(config.healthz_bind_address);
        let of_health = "/healthz and /livez";
        let metrics = Some(config.metrics_bind_address);
        let of_metrics = "/metrics, /configz and /warnings";
        let probes = config.probe_bind_address;
        let probed = "/healthz and /livez for the kubelet's probes";
        let site = |address: Option<SocketAddr>, setting, paths, topic| {
            let address = address.filter(|address| address.port() != 0)?;
            Some(Self {
                address,
                setting,
                paths,
                topic,
            })
        };
        let all = [
            site(health, "healthzBindAddress", of_health, Topic::Health),
            site(metrics, "metricsBindAddress", of_metrics, Topic::Metrics),
            site(probes, "portolan.probeBindAddress", probed, Topic::Probes),
        ];
        all.into_iter().flatten().collect()
    }

    pub fn warning(&self, error: &io::Error) -> Warning {
        let Self {
            address,
            setting,
            paths,
            ..
        } = self;
        let remedy = match error.kind() {
            io::ErrorKind::AddrInUse => {
                let port = address.port();
                format!(
                    "stop the process that uses the port (find it with `ss -ltnp sport = :{port}`) or set {setting} to another address"
                )
            }
            _ => format!("set {setting} to an address of this node"),
        };
        Warning {
            object: format!("{setting} {address}"),
            reason: format!("{paths} cannot be served: {error}; {remedy}"),
        }
    }

    /// Answers requests until `stop`. Uses the listener `first`; if listening has failed, it warns
    /// and tries again.
    pub(crate) async fn serve(
        self,
        mut first: io::Result<TcpListener>,
        router: Router,
        warnings: Warnings,
        stop: CancellationToken,
    ) {
        let [mut pause, longest] = PAUSES;
        loop {
            match first {
                Ok(listener) => {
                    warnings.replace(self.topic, Vec::new());
                    return serve(listener, router, stop).await;
                }
                Err(error) => {
                    let mut warning = self.warning(&error);
                    warning.reason += "; it is tried again every few seconds";
                    warnings.replace(self.topic.clone(), vec![warning]);
                }
            }
            tokio::select! {
                () = sleep(pause) => {}
                () = stop.cancelled() => return,
            }
            pause = longest.min(pause * 2);
            first = listen(self.address);
        }
    }
}

/// Answers requests on a listener until `stop`; then finishes open connections.
pub(crate) async fn serve(listener: TcpListener, router: Router, stop: CancellationToken) {
    let stopped = async move { stop.cancelled().await };
    let serving = axum::serve(listener, router).with_graceful_shutdown(stopped);
    // axum's future never returns an error: it repeats a failed accept itself.
    _ = serving.await;
}
