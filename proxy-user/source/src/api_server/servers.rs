// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The API servers of a cluster, and to which of them a new connection goes: those that are given,
//! then those that the cluster lists as the endpoints of its service `kubernetes`, and last the one
//! whose connection has ended. All requests share a connection of HTTP/2, so they move together.
//! Used by `client`; `api_server` tells of the endpoints.

use std::{
    collections::{BTreeMap, HashMap},
    fs, io,
    net::SocketAddr,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use control::{
    causes::chain,
    model::{Conditions, EndpointSlice},
    object::ObjectName,
};
use futures_util::future::BoxFuture;
use http::Uri;
use hyper_util::client::legacy::connect::Connection;
use tokio::{
    sync,
    time::{Instant, sleep},
};
use tower::{BoxError, Service, ServiceExt};

/// Requests that begin together may each make a connection, if the server knows no HTTP/2.
const TOGETHER: Duration = Duration::from_secs(5);

/// How long a server that could not be reached is tried after the others.
const AWAY: Duration = Duration::from_secs(600);

/// The addresses of the API servers, such as `https://192.0.2.1:6443`; clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Servers(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    given: Vec<String>,
    /// Whether no others are to be used.
    only_given: bool,
    /// Those of each slice that lists some; under no name, those of the file.
    learned: BTreeMap<ObjectName, Vec<String>>,
    /// When a server could last not be reached.
    away: HashMap<String, Instant>,
    /// The server to which the last connections were made, and when the first of them was.
    last: Option<(String, Instant)>,
    /// Keeps those that were learned, for the next start.
    file: Option<PathBuf>,
}

impl Servers {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the servers that are given, and whether no others are to be used.
    pub(super) fn give<'a>(&self, given: impl IntoIterator<Item = &'a Uri>, only_given: bool) {
        let text = |uri: &Uri| {
            let authority = uri.authority().map_or("", |authority| authority.as_str());
            format!("{}://{authority}", uri.scheme_str().unwrap_or("https"))
        };
        let mut state = self.state();
        state.given = given.into_iter().map(text).collect();
        state.only_given = only_given;
    }

    /// Keeps what is learned in a file, and begins with what is there.
    pub(super) fn keep_in(&self, file: PathBuf) {
        let kept = fs::read_link(&file).unwrap_or_default();
        let kept = kept.to_string_lossy();
        let kept = kept.split(',').filter(|server| !server.is_empty());
        let mut state = self.state();
        let kept = kept.map(str::to_owned).collect();
        state.learned.insert(ObjectName::default(), kept);
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
        let is_new = state.learned.get(&slice.name) != Some(&found);
        if state.only_given || found.is_empty() || !is_new {
            return;
        }
        state.learned.remove(&ObjectName::default());
        state.learned.insert(slice.name.clone(), found);
        if let Some(file) = &state.file
            && let Err(error) = keep(file, &state.learned())
        {
            tracing::warn!(
                "could not keep the API servers' addresses in {}: {error}; after a start only those that are given are tried",
                file.display()
            );
        }
    }

    /// Returns the servers in the order in which they are to be tried: drawn, so that not all nodes
    /// go to the same one.
    fn in_order(&self) -> Vec<String> {
        let state = self.state();
        let mut servers = state.given.clone();
        fastrand::shuffle(&mut servers);
        let mut learned = state.learned();
        fastrand::shuffle(&mut learned);
        learned.retain(|server| !servers.contains(server));
        servers.append(&mut learned);
        let is_away = |since: &Instant| since.elapsed() < AWAY;
        servers.sort_by_key(|server| state.away.get(server).is_some_and(is_away));
        if let Some((last, since)) = &state.last {
            // There is no new connection while the last one stands.
            let has_ended = since.elapsed() > TOGETHER;
            servers.sort_by_key(|server| (server == last) == has_ended);
        }
        servers
    }

    /// Notes whether a server could be reached.
    fn note(&self, server: String, is_reached: bool) {
        let State { last, away, .. } = &mut *self.state();
        if !is_reached {
            away.insert(server, Instant::now());
            return;
        }
        away.remove(&server);
        if last.as_ref().is_none_or(|(before, _)| *before != server) {
            tracing::info!("connected to the API server {server}");
            *last = Some((server, Instant::now()));
        }
    }
}

impl State {
    /// Returns the servers that are learned and may be used.
    fn learned(&self) -> Vec<String> {
        let learned = self.learned.values().filter(|_| !self.only_given);
        learned.flatten().cloned().collect()
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
    pub(super) last: Arc<sync::Mutex<Attempt>>,
}

/// When the last attempt ended: in a connection that all requests share, or why there is none; None
/// after a connection that is not shared.
type Attempt = Option<(Instant, Result<(), String>)>;

impl<C> Service<Uri> for Connector<C>
where
    C: Service<Uri, Error = BoxError> + Clone + Send + 'static,
    C::Future: Send,
    C::Response: Connection + Send,
{
    type Response = C::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<C::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let (servers, inner) = (self.servers.clone(), self.inner.clone());
        let (last, begun) = (Arc::clone(&self.last), Instant::now());
        Box::pin(async move {
            // Of requests that begin together one connects. The others get its connection from the
            // pool, and their attempts are of no use.
            let mut last = last.lock().await;
            match last.clone().filter(|(ended, _)| *ended > begun) {
                Some((_, Err(why))) => return Err(why.into()),
                Some((_, Ok(()))) => {
                    drop(last);
                    sleep(TOGETHER).await;
                    return Err("the connection of another request was not shared".into());
                }
                None => {}
            }
            let mut answer = Err("no API server is known".into());
            for server in servers.in_order() {
                let Ok(address) = server.parse() else {
                    continue;
                };
                answer = inner.clone().oneshot(address).await;
                servers.note(server, answer.is_ok());
                if answer.is_ok() {
                    break;
                }
            }
            let outcome = match &answer {
                Ok(stream) => stream.connected().is_negotiated_h2().then_some(Ok(())),
                Err(error) => Some(Err(chain(&**error))),
            };
            *last = outcome.map(|outcome| (Instant::now(), outcome));
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use control::{model::Object, testing::objects};
    use futures_util::future::join_all;
    use hyper_util::client::legacy::connect::Connected;
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

    /// A connection to the server with this last number.
    struct Stream(String);

    impl Connection for Stream {
        fn connected(&self) -> Connected {
            Connected::new().negotiated_h2()
        }
    }

    fn connector<C>(servers: &Servers, inner: C) -> Connector<C> {
        Connector {
            servers: servers.clone(),
            inner,
            last: Arc::default(),
        }
    }

    /// Connects to a server that is not away, and returns its last number.
    async fn connect(servers: &Servers, away: &'static str) -> String {
        let inner = service_fn(move |uri: Uri| async move {
            let last = uri.host().and_then(|host| host.rsplit('.').next());
            let last = last.unwrap_or_default().to_owned();
            let is_away = away.contains(&last);
            let stream = (!is_away).then_some(Stream(last));
            stream.ok_or(BoxError::from("away"))
        });
        let mut connector = connector(servers, inner);
        let connected = connector.call(Uri::default()).await;
        connected.map_or_else(|error| error.to_string(), |Stream(last)| last)
    }

    #[tokio::test(start_paused = true)]
    async fn of_requests_that_begin_together_one_connects() {
        let servers = Servers::default();
        servers.give([&Uri::from_static("https://192.0.2.1")], false);
        for connections in [0, 1] {
            let inner = service_fn(move |_: Uri| async move {
                sleep(TOGETHER).await;
                let stream = (connections > 0).then_some(Stream(String::new()));
                stream.ok_or(BoxError::from("away"))
            });
            let mut connector = connector(&servers, inner);
            let begun = Instant::now();
            let all = join_all((0..9).map(|_| connector.call(Uri::default()))).await;
            let made = all.iter().filter(|one| one.is_ok()).count();
            assert_eq!(made, connections);
            assert!(begun.elapsed() <= 2 * TOGETHER + Duration::from_millis(9));
        }
    }

    fn learn(servers: &Servers, slice: &str) {
        for object in objects(slice).0 {
            if let Object::EndpointSlice(slice) = object {
                servers.learn(&slice);
            }
        }
    }

    #[tokio::test]
    async fn servers_are_learned_from_every_slice_of_the_service_unless_only_those_given_will_do() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("api-servers");
        let kept = ["https://[", "https://192.0.2.9"].map(str::to_owned);
        keep(&file, &kept).expect("kept");
        let servers = Servers::default();
        servers.keep_in(file.clone());
        assert_eq!(connect(&servers, "").await, "9", "the other is unreadable");
        let v6 = SLICE.replace("name: kubernetes,", "name: v6,");
        let v6 = v6.replace("IPv4", "IPv6").replace("192.0.2.", "fd00::");
        learn(&servers, SLICE);
        learn(&servers, &v6);
        assert_eq!(servers.in_order().len(), 6);
        let kept = fs::read_link(&file).expect("kept");
        assert_eq!(kept.to_string_lossy().split(',').count(), 6);
        servers.give([&Uri::from_static("https://192.0.2.1/c/1")], true);
        assert_eq!(servers.in_order(), ["https://192.0.2.1"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_was_away_is_tried_after_the_others_for_a_while() {
        let servers = Servers::default();
        let given = ["https://192.0.2.1", "https://192.0.2.2"];
        servers.give(&given.map(Uri::from_static), false);
        servers.note(given[0].to_owned(), false);
        let is_last = || (0..99).all(|_| servers.in_order()[1] == given[0]);
        assert!(is_last());
        advance(AWAY).await;
        assert!(!is_last());
    }

    #[tokio::test(start_paused = true)]
    async fn a_dead_server_is_left_for_those_that_the_cluster_lists_also_at_the_next_start() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("api-servers");
        let start = || {
            let servers = Servers::default();
            servers.give([&Uri::from_static("https://192.0.2.1:6443")], false);
            servers.keep_in(file.clone());
            servers
        };
        let servers = start();
        assert_eq!(connect(&servers, "1").await, "away");
        learn(&servers, SLICE);
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
