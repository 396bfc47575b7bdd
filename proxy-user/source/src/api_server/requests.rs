// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts the requests to the API server and measures how long they take, for metrics under
//! client-go's names. It is a layer around the HTTP client; `metrics` shows the results.

use std::{
    sync::atomic::AtomicU64,
    task::{Context, Poll},
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use control::model::Kind;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use prometheus_client::metrics::{
    counter::Counter, family::Family, gauge::Gauge, histogram::Histogram,
};
use tower::{Layer, Service};

/// Counts and durations of the requests to the API server.
#[derive(Clone, Debug)]
pub struct Requests {
    /// KUBE: the labels are those of `rest_client_requests_total`. The code is the HTTP status as a
    /// number, or `<error>` if there was no answer.
    pub answers: Family<Labels<3>, Counter>,
    /// KUBE: the labels are those of `rest_client_request_duration_seconds`.
    pub durations: Family<Labels<2>, Histogram, fn() -> Histogram>,
    /// When the last byte of a watch was received, in seconds since 1970.
    pub last_bytes: Family<Labels<1>, Gauge<f64, AtomicU64>>,
    /// How often a kind was listed again because nothing came of it.
    pub silences: Family<Labels<1>, Counter>,
}

/// Names and values of labels.
type Labels<const N: usize> = [(&'static str, String); N];

impl Default for Requests {
    fn default() -> Self {
        // KUBE: client-go's buckets, in seconds.
        const BUCKETS: [f64; 12] = [
            0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0,
        ];
        Self {
            answers: Family::default(),
            durations: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            last_bytes: Family::default(),
            silences: Family::default(),
        }
    }
}

impl Requests {
    /// Returns the layer that counts the requests of a client of this server.
    pub(super) fn to(&self, host: &str) -> Counting {
        Counting {
            requests: self.clone(),
            host: host.to_owned(),
        }
    }

    /// Notes that something of the watch on a kind was received just now. KUBE: without changes
    /// the server sends a bookmark each minute.
    pub fn received(&self, kind: Kind) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let last = self.last_bytes.get_or_create(&[("kind", kind.to_string())]);
        last.set(now.unwrap_or_default().as_secs_f64());
    }

    /// Notes that nothing has come of the watch on a kind for minutes.
    pub fn silent(&self, kind: Kind) {
        let labels = [("kind", kind.to_string())];
        self.silences.get_or_create(&labels).inc();
    }

    /// Notes that a kind, which the server does not have any more, is not watched.
    pub fn forget(&self, kind: Kind) {
        self.last_bytes.remove(&[("kind", kind.to_string())]);
    }

    /// Counts a request. `code`: the HTTP status; None without an answer. `begun`: the time of the
    /// request; None for a watch, whose duration says nothing.
    pub fn note(&self, host: &str, method: &str, code: Option<u16>, begun: Option<Instant>) {
        let (host, method) = (host.to_owned(), method.to_owned());
        if let Some(begun) = begun {
            let labels = [("host", host.clone()), ("verb", method.clone())];
            let durations = self.durations.get_or_create(&labels);
            durations.observe(begun.elapsed().as_secs_f64());
        }
        let code = code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
        let labels = [("code", code), ("host", host), ("method", method)];
        self.answers.get_or_create(&labels).inc();
    }
}

/// The layer around an HTTP client that counts its requests.
#[derive(Clone)]
pub(super) struct Counting {
    requests: Requests,
    host: String,
}

impl<S> Layer<S> for Counting {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Counted<S> {
        let counting = self.clone();
        Counted { counting, inner }
    }
}

/// An HTTP client whose requests are counted.
#[derive(Clone)]
pub(super) struct Counted<S> {
    counting: Counting,
    inner: S,
}

impl<S, B, A> Service<Request<B>> for Counted<S>
where
    S: Service<Request<B>, Response = Response<A>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let Counting { requests, host } = self.counting.clone();
        let method = request.method().to_string();
        let query = request.uri().query().unwrap_or_default();
        let is_watch = query.split('&').any(|pair| pair == "watch=true");
        let begun = (!is_watch).then(Instant::now);
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            let code = answer.as_ref().ok().map(|answer| answer.status().as_u16());
            requests.note(&host, &method, code, begun);
            answer
        })
    }
}
