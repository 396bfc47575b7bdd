// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The API servers of a cluster, and to which of them a new connection goes: those that are given,
//! then those that the cluster lists as the endpoints of its service `kubernetes`, and last the one
//! whose connection has ended. All requests share a connection of HTTP/2, so they move together.
//! Used by `client`; `api_server` tells of the endpoints.

use std::{
    fs, io,
    net::SocketAddr,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use control::model::{Conditions, EndpointSlice};
use futures_util::future::BoxFuture;
use http::Uri;
use tokio::time::Instant;
use tower::{BoxError, Service, ServiceExt};

/// Requests that begin together may each make a connection, of which one stays.
const TOGETHER: Duration = Duration::from_secs(5);

/// The addresses of the API servers, such as `https://192.0.2.1:6443`; clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Servers(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    given: Vec<String>,
    learned: Vec<String>,
    /// The server to which the last connections were made, and when the first of them was.
    last: Option<(String, Instant)>,
    /// Keeps those that were learned, for the next start.
    file: Option<PathBuf>,
}

impl Servers {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the servers that are given.
    pub(super) fn give<'a>(&self, given: impl IntoIterator<Item = &'a Uri>) {
        let text = |uri: &Uri| {
            let authority = uri.authority().map_or("", |authority| authority.as_str());
            format!("{}://{authority}", uri.scheme_str().unwrap_or("https"))
        };
        self.state().given = given.into_iter().map(text).collect();
    }

    /// Keeps what is learned in a file, and begins with what is there.
    pub(super) fn keep_in(&self, file: PathBuf) {
        let kept = fs::read_link(&file).unwrap_or_default();
        let kept = kept.to_string_lossy();
        let kept = kept.split(',').filter(|server| !server.is_empty());
        let mut state = self.state();
        state.learned = kept.map(str::to_owned).collect();
        state.file = Some(file);
    }

    /// Takes in a slice as it is now, of which those of the service `kubernetes` matter.
    pub(super) fn learn(&self, slice: &EndpointSlice) {
        let of = slice.service.as_ref();
        let of = of.map(|service| (&*service.namespace, &*service.name));
        if of != Some(("default", "kubernetes")) {
            return;
        }
        let endpoints = slice.endpoints.all();
        let ready = endpoints.filter(|(_, conditions, _)| conditions.has(Conditions::READY));
        let ports = || slice.ports.iter().map(|port| port.port.host());
        let addresses = ready.flat_map(|(ip, ..)| ports().map(move |port| (ip, port)));
        let found = addresses.map(|address| format!("https://{}", SocketAddr::from(address)));
        let mut found: Vec<_> = found.collect();
        found.sort_unstable();
        let mut state = self.state();
        if found.is_empty() || found == state.learned {
            return;
        }
        if let Some(file) = &state.file
            && let Err(error) = keep(file, &found)
        {
            tracing::warn!(
                "could not keep the API servers' addresses in {}: {error}; after a start only those that are given are tried",
                file.display()
            );
        }
        state.learned = found;
    }

    /// Returns the servers in the order in which they are to be tried: drawn, so that not all nodes
    /// go to the same one.
    fn in_order(&self) -> Vec<String> {
        let state = self.state();
        let mut servers = state.given.clone();
        fastrand::shuffle(&mut servers);
        let mut learned = state.learned.clone();
        fastrand::shuffle(&mut learned);
        learned.retain(|server| !servers.contains(server));
        servers.append(&mut learned);
        if let Some((last, since)) = &state.last {
            // There is no new connection while the last one stands.
            let has_ended = since.elapsed() > TOGETHER;
            servers.sort_by_key(|server| (server == last) == has_ended);
        }
        servers
    }

    /// Notes that a connection to a server was made.
    fn note(&self, server: String) {
        let last = &mut self.state().last;
        if last.as_ref().is_none_or(|(before, _)| *before != server) {
            tracing::info!("connected to the API server {server}");
            *last = Some((server, Instant::now()));
        }
    }
}

/// Replaces the content of a file. A BPF file system has no files but pins; a symbolic link holds a
/// text there.
fn keep(file: &Path, servers: &[String]) -> io::Result<()> {
    let new = file.with_file_name("api-servers-new");
    _ = fs::remove_file(&new);
    symlink(servers.join(","), &new)?;
    fs::rename(new, file)
}

/// Connects to the first server that answers, whatever address is asked for.
#[derive(Clone)]
pub(super) struct Connector<C> {
    pub(super) servers: Servers,
    pub(super) inner: C,
}

impl<C> Service<Uri> for Connector<C>
where
    C: Service<Uri, Error = BoxError> + Clone + Send + 'static,
    C::Future: Send,
    C::Response: Send,
{
    type Response = C::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<C::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let (servers, inner) = (self.servers.clone(), self.inner.clone());
        Box::pin(async move {
            let mut answer = Err("no API server is known".into());
            for server in servers.in_order() {
                answer = inner.clone().oneshot(server.parse()?).await;
                if answer.is_ok() {
                    servers.note(server);
                    break;
                }
            }
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use control::{model::Object, testing::objects};
    use tokio::time::advance;
    use tower::service_fn;

    use super::*;

    const SLICE: &str = "apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kubernetes, namespace: default, labels: {kubernetes.io/service-name: kubernetes}}
addressType: IPv4
ports: [{name: https, port: 6443}]
endpoints: [{addresses: [192.0.2.1]}, {addresses: [192.0.2.2]}, {addresses: [192.0.2.3]}]
";

    /// Connects to a server that is not away, and returns its last number.
    async fn connect(servers: &Servers, away: &'static str) -> String {
        let inner = service_fn(move |uri: Uri| async move {
            let last = uri.host().and_then(|host| host.rsplit('.').next());
            let last = last.unwrap_or_default().to_owned();
            let is_away = away.contains(&last);
            (!is_away).then_some(last).ok_or(BoxError::from("away"))
        });
        let servers = servers.clone();
        let mut connector = Connector { servers, inner };
        let connected = connector.call(Uri::default()).await;
        connected.unwrap_or_else(|error| error.to_string())
    }

    #[tokio::test(start_paused = true)]
    async fn a_dead_server_is_left_for_those_that_the_cluster_lists_also_at_the_next_start() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("api-servers");
        let start = || {
            let servers = Servers::default();
            servers.give([&Uri::from_static("https://192.0.2.1:6443")]);
            servers.keep_in(file.clone());
            servers
        };
        let servers = start();
        assert_eq!(connect(&servers, "1").await, "away");
        let (objects, _) = objects(SLICE);
        let [Object::EndpointSlice(slice)] = &objects[..] else {
            panic!("{objects:?}")
        };
        servers.learn(slice);
        assert_eq!(connect(&servers, "23").await, "1");
        let servers = start();
        // The one that is given comes first, also for requests that begin together.
        for _ in 0..9 {
            assert_eq!(connect(&servers, "").await, "1");
        }
        // A later connection is made because that one has ended, as of a server that hangs.
        advance(2 * TOGETHER).await;
        let second = connect(&servers, "").await;
        assert_ne!(second, "1");
        assert_eq!(connect(&servers, "").await, second);
        advance(2 * TOGETHER).await;
        assert_eq!(connect(&servers, "23").await, "1");
        assert_eq!(connect(&servers, "123").await, "away");
    }
}
