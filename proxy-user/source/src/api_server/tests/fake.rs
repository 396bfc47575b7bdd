// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A fake API server: answers each request for a kind of object with the next answer of its script.

use std::{
    collections::HashMap,
    fs,
    io::Write,
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::ConnectInfo,
    http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use flate2::{Compression, write::GzEncoder};
use futures_util::{StreamExt, stream};
use kube::Client;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::store::{self, Store};
use crate::api_server::{Access, Requests};

pub(super) const GROUPS: &str = "/apis";
pub(super) const SERVICES: &str = "/api/v1/services";
pub(super) const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
pub(super) const NODES: &str = "/api/v1/nodes";
pub(super) const GATEWAY_API: &str = "gateway.networking.k8s.io";
pub(super) const SERVICE_CIDRS: &str = "/apis/networking.k8s.io/v1/servicecidrs";

/// One scripted answer to a request.
#[derive(Clone)]
pub(super) enum Answer {
    Status(u16, &'static str),
    Page(Value),
    /// The events of a watch, one a line.
    Watch(Vec<Value>, End),
    /// A refusal with the header Retry-After, in seconds.
    Busy(u16),
    After(Duration, Box<Self>),
}

/// What comes after the events of a watch.
#[derive(Clone, Copy)]
pub(super) enum End {
    /// Nothing: it stays open.
    Open,
    /// The end of the stream. So many bytes of the last line are not sent.
    Cut(usize),
    /// As `Open`, each event in a gzip member of its own. KUBE: so servers since 1.37 compress a
    /// watch that begins with a list.
    Zipped,
    /// A line begins and does not end, a blank every few seconds.
    Alive,
}

impl Answer {
    /// Returns a list as a watch streams it; the watch stays open.
    pub(super) fn initial(objects: &[Value]) -> Self {
        let versions = objects.iter().filter_map(|object| {
            let version = &object["metadata"]["resourceVersion"];
            version.as_str()?.parse::<u32>().ok()
        });
        let bookmark = json!({
            "kind": "Any", "apiVersion": "v1",
            "metadata": {
                "resourceVersion": versions.max().unwrap_or(1).to_string(),
                "annotations": {"k8s.io/initial-events-end": "true"}
            }
        });
        let lines = objects.iter().map(|object| event("ADDED", object));
        let lines = lines.chain([event("BOOKMARK", &bookmark)]);
        Self::Watch(lines.collect(), End::Open)
    }
    pub(super) fn watch(events: &[(&str, Value)]) -> Self {
        Self::Watch(Vec::new(), End::Open).then(events)
    }
    pub(super) fn page(objects: &[Value], next: Option<&str>) -> Self {
        Self::Page(json!({
            "kind": "List", "apiVersion": "v1",
            "metadata": {"resourceVersion": "2", "continue": next},
            "items": objects
        }))
    }
    /// Returns the groups that the server has, each of version v1.
    pub(super) fn groups(names: &[&str]) -> Self {
        let groups = names.iter().map(|name| {
            let version = json!({"groupVersion": format!("{name}/v1"), "version": "v1"});
            json!({"name": name, "versions": [version]})
        });
        let groups = Value::from_iter(groups);
        Self::Page(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
    }
    /// Returns the kinds of the group `name`.
    pub(super) fn kinds(name: &str, kinds: &[&str]) -> Self {
        let resources = kinds.iter().map(|kind| {
            json!({"name": kind.to_lowercase(), "singularName": "", "namespaced": true, "kind": kind, "verbs": ["list", "watch"]})
        });
        Self::Page(json!({
            "kind": "APIResourceList", "apiVersion": "v1",
            "groupVersion": format!("{name}/v1"), "resources": Value::from_iter(resources)
        }))
    }
    /// Returns the same watch with more events at its end.
    pub(super) fn then(self, events: &[(&str, Value)]) -> Self {
        let (mut lines, end) = self.watched();
        lines.extend(events.iter().map(|(kind, object)| event(kind, object)));
        Self::Watch(lines, end)
    }
    /// Returns the same watch with another end.
    pub(super) fn ending(self, end: End) -> Self {
        Self::Watch(self.watched().0, end)
    }
    pub(super) fn close(self) -> Self {
        self.ending(End::Cut(0))
    }
    fn watched(self) -> (Vec<Value>, End) {
        match self {
            Self::Watch(lines, end) => (lines, end),
            _ => panic!("only a watch has events"),
        }
    }
    pub(super) fn after(self, wait: Duration) -> Self {
        Self::After(wait, Box::new(self))
    }

    async fn give(self) -> Response {
        match self {
            Self::After(wait, answer) => {
                tokio::time::sleep(wait).await;
                Box::pin(answer.give()).await
            }
            Self::Busy(seconds) => {
                let wait = [(header::RETRY_AFTER, HeaderValue::from(seconds))];
                (wait, status(429, "too many requests")).into_response()
            }
            Self::Status(code, message) => status(code, message),
            Self::Page(page) => json_response(Body::from(page.to_string())),
            Self::Watch(lines, End::Zipped) => {
                let members = stream::iter(lines.into_iter().map(|line| {
                    let mut member = GzEncoder::new(Vec::new(), Compression::fast());
                    writeln!(member, "{line}")?;
                    member.finish()
                }));
                let body = Body::from_stream(members.chain(stream::pending()));
                ([(header::CONTENT_ENCODING, "gzip")], json_response(body)).into_response()
            }
            Self::Watch(lines, end) => {
                let mut text: String = lines.iter().map(|line| format!("{line}\n")).collect();
                if let End::Cut(cut) = end {
                    text.truncate(text.len() - cut);
                }
                let lines = stream::iter([Ok::<_, std::io::Error>(Bytes::from(text))]);
                json_response(match end {
                    End::Cut(_) => Body::from_stream(lines),
                    End::Alive => Body::from_stream(lines.chain(stream::unfold((), async |()| {
                        tokio::time::sleep(Duration::from_secs(10)).await;
                        Some((Ok(Bytes::from_static(b" ")), ()))
                    }))),
                    End::Open | End::Zipped => Body::from_stream(lines.chain(stream::pending())),
                })
            }
        }
    }
}

fn event(kind: &str, object: &Value) -> Value {
    json!({"type": kind, "object": object})
}

pub(super) fn status(code: u16, message: &str) -> Response {
    let reason = if code == 404 { "NotFound" } else { "Test" };
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message, "reason": reason});
    let code = StatusCode::from_u16(code).expect("a status");
    (code, status.to_string()).into_response()
}

pub(super) fn json_response(body: Body) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

type Head = (ConnectInfo<SocketAddr>, Method, Uri, HeaderMap);

/// The fake server; a kind without a script has no objects.
#[derive(Clone)]
pub(super) struct Fake {
    state: Arc<Mutex<State>>,
    store: Arc<Mutex<Store>>,
    folder: Arc<TempDir>,
}

#[derive(Default)]
struct State {
    scripts: HashMap<&'static str, Vec<Answer>>,
    asked: HashMap<String, Vec<String>>,
    /// The client's name and token in each request.
    clients: Vec<[Option<HeaderValue>; 2]>,
    /// The client's address and port in each request.
    peers: Vec<SocketAddr>,
}

impl Fake {
    pub(super) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a port");
        let server = format!("http://{}", listener.local_addr().expect("an address"));
        let folder = TempDir::with_prefix("portolan-api-").expect("a folder");
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": server}}],
            "users": [{"name": "test", "user": {"tokenFile": folder.path().join("token")}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}]
        });
        let fake = Self {
            state: Arc::default(),
            store: Arc::default(),
            folder: folder.into(),
        };
        fs::write(fake.kubeconfig(), kubeconfig.to_string()).expect("a kubeconfig");
        let serving = fake.clone();
        fs::write(fake.folder.path().join("token"), "secret").expect("a token");
        let groups = ["discovery.k8s.io", "networking.k8s.io", GATEWAY_API];
        fake.script(GROUPS, [Answer::groups(&groups)]);
        let answer = async move |(peer, method, uri, headers): Head, body: Bytes| {
            serving.state().peers.push(peer.0);
            let names = [header::USER_AGENT, header::AUTHORIZATION];
            let client = names.map(|name| headers.get(name).cloned());
            serving.state().clients.push(client);
            if store::keeps(uri.path()) {
                return serving.keep_at(method, uri.path().to_owned(), body).await;
            }
            serving.answer(uri).await
        };
        let router = Router::new().fallback(answer);
        let router = router.into_make_service_with_connect_info::<SocketAddr>();
        tokio::spawn(async move { axum::serve(listener, router).await });
        fake
    }
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panicked")
    }
    /// Returns the objects that are kept.
    pub(super) fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().expect("nobody panicked")
    }
    fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }
    pub(super) fn access(&self) -> Access {
        Access::new(Some(self.kubeconfig()), Vec::new()).expect("an address")
    }
    pub(super) async fn client(&self) -> Client {
        let client = self.access().client(&Requests::default(), "portolan").await;
        client.expect("a client")
    }
    /// Returns the client's name and token in each request.
    pub(super) fn clients(&self) -> Vec<[Option<HeaderValue>; 2]> {
        self.state().clients.clone()
    }
    /// Returns how many requests came by each connection.
    pub(super) fn requests(&self) -> Vec<usize> {
        let peers = self.state().peers.clone();
        peers.chunk_by(PartialEq::eq).map(<[_]>::len).collect()
    }
    pub(super) fn script<const N: usize>(&self, path: &'static str, answers: [Answer; N]) {
        self.state().scripts.insert(path, answers.into());
    }
    /// Returns the queries received for a path.
    pub(super) fn asked(&self, path: &str) -> Vec<String> {
        self.state().asked.get(path).cloned().unwrap_or_default()
    }

    async fn answer(self, uri: Uri) -> Response {
        let answer = {
            let mut state = self.state();
            let query = uri.query().unwrap_or_default().to_owned();
            let asked = state.asked.entry(uri.path().to_owned()).or_default();
            asked.push(query);
            let number = asked.len() - 1;
            match state.scripts.get(uri.path()) {
                // What a server has is the same at each request.
                Some(script) if uri.path() == GROUPS || uri.path().ends_with("/v1") => {
                    script.last().cloned()
                }
                Some(script) => script.get(number).cloned(),
                None => (number == 0).then(|| Answer::initial(&[])),
            }
        };
        match answer {
            Some(answer) => answer.give().await,
            // After the end of the script, the answer is a watch in which nothing happens.
            None => Answer::watch(&[]).give().await,
        }
    }
}
