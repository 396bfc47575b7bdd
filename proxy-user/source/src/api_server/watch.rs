// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Asks the API server for lists and watches of one kind of object. `follow` decides when.

use std::{marker::PhantomData, mem, time::Duration};

use form_urlencoded::Serializer;
use http::{
    Request, Response, StatusCode,
    header::{ACCEPT, ACCEPT_ENCODING, RETRY_AFTER},
};
use http_body_util::BodyExt;
use hyper_util::client::legacy::connect::CaptureConnection;
use kube::{Client, client::Body};
use prost::bytes::{Bytes, BytesMut};

use super::{
    breaker::poison,
    follow::Followed,
    requests::Requests,
    wire::{ACCEPTED, Compression, Encoding, GZIP, Page, Status, Unreadable, Watched},
};

/// Why the server gave no answer, or not the one that was asked for.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("{asked} was refused: {}", said(status))]
    Refused { asked: Asked, status: Status },
    #[error("{asked} failed")]
    Broken {
        asked: Asked,
        #[source]
        error: kube::Error,
    },
    #[error("the watch ended inside an event")]
    Cut,
    #[error("the list ended before all of its objects had come")]
    Unfinished,
    #[error("nothing came for minutes, not even a bookmark")]
    Silent,
    #[error("the answer to {asked} is not understood")]
    Unreadable {
        asked: Asked,
        #[source]
        error: Unreadable,
    },
}

/// The name of a request to the API server.
type Asked = &'static str;
const LIST: Asked = "listing";
const WATCH: Asked = "watching";
/// KUBE: the status of a request with a parameter that the server does not know.
const BAD_REQUEST: u16 = 400;

/// Describes a refusal for operators. A server, or a proxy before it, may end a watch with a Status
/// in which nothing is set; that gets a text of its own.
fn said(status: &Status) -> String {
    let Status {
        code,
        message,
        reason,
        ..
    } = status;
    match (code, &**message, &**reason) {
        (0, "", "") => "the server says neither a code nor a reason (an empty Status), as servers do that stop or are overloaded".to_owned(),
        (code, message, "") => format!("{message} (status {code})"),
        (code, message, reason) => format!("{message}: {reason} (status {code})"),
    }
}

impl Failure {
    fn status(&self) -> Option<&Status> {
        match self {
            Self::Refused { status, .. } => Some(status),
            _ => None,
        }
    }
    /// Returns the HTTP status; None if the server gave none.
    pub(super) fn code(&self) -> Option<u16> {
        Some(self.status()?.code)
    }
    /// Whether a new list is needed: the server has forgotten the version, or sends nothing of it.
    pub(super) fn is_stale(&self) -> bool {
        const GONE: u16 = 410;
        self.code() == Some(GONE) || matches!(self, Self::Silent)
    }
    /// Whether the server refused to stream a list, because it does not know how.
    pub(super) fn is_no_streaming(&self) -> bool {
        const INVALID: u16 = 422;
        self.status().is_some_and(|status| {
            matches!(status.code, BAD_REQUEST | INVALID)
                && status.message.contains("sendInitialEvents")
        })
    }
    /// Whether the server knows no such field to select by. KUBE: servers before 1.31 select
    /// Services by their names only.
    pub(super) fn is_unknown_field(&self) -> bool {
        self.code() == Some(BAD_REQUEST)
            && self
                .status()
                .is_some_and(|status| status.message.contains("field selector"))
    }
    /// Returns how long the server wants not to be asked again. KUBE: `Retry-After`.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        let seconds = self.status()?.details.as_ref()?.retry_after_seconds?;
        Some(Duration::from_secs(seconds.into()))
    }
}

/// Selects the objects of a kind to follow; empty texts select all.
#[derive(Clone, Default)]
pub(super) struct Selector {
    pub(super) labels: String,
    pub(super) fields: String,
}

/// The objects of a kind, at the server.
pub(super) struct Objects<K> {
    client: Client,
    selector: Selector,
    requests: Requests,
    kind: PhantomData<fn() -> K>,
}

impl<K: Followed> Objects<K> {
    pub(super) fn new(client: &Client, selector: &Selector, requests: &Requests) -> Self {
        Self {
            client: client.clone(),
            selector: selector.clone(),
            requests: requests.clone(),
            kind: PhantomData,
        }
    }

    /// Selects by no field any more; returns whether that is new.
    pub(super) fn drop_fields(&mut self) -> bool {
        !mem::take(&mut self.selector.fields).is_empty()
    }

    /// Asks for the list as it is now, or for its next part, which `more` of the last one names.
    ///
    /// KUBE: without a version the list is the most recent one, which servers since 1.31 have in
    /// their cache. A list of any version could be older than what is in the maps.
    pub(super) async fn list(&self, more: &str) -> Result<Page<K>, Failure> {
        let asked = LIST;
        let part = [("continue", more)];
        let part = if more.is_empty() { &[][..] } else { &part };
        let answer = self.send(asked, self.uri(part)).await?;
        let encoding = Encoding::of(answer.headers());
        let body = collected(asked, answer).await?;
        self.requests.received(K::KIND);
        let page = encoding.list(&body);
        page.map_err(|error| Failure::Unreadable { asked, error })
    }

    /// Begins a watch from a version; without one, a watch that begins with the list as it is now.
    pub(super) async fn watch(
        &self,
        version: Option<&str>,
        lasts: Duration,
    ) -> Result<Watch<K>, Failure> {
        let asked = WATCH;
        let lasts = lasts.as_secs().to_string();
        let watch = [
            ("watch", "true"),
            ("timeoutSeconds", &lasts),
            ("allowWatchBookmarks", "true"),
        ];
        let from = match version {
            Some(version) => &[("resourceVersion", version)][..],
            None => &[
                ("sendInitialEvents", "true"),
                ("resourceVersionMatch", "NotOlderThan"),
            ],
        };
        let mut answer = self.send(asked, self.uri(&[&watch, from].concat())).await?;
        Ok(Watch {
            connection: answer.extensions_mut().remove(),
            encoding: Encoding::of(answer.headers()),
            compression: Compression::of(answer.headers()),
            body: answer.into_body(),
            received: BytesMut::new(),
            requests: self.requests.clone(),
            kind: PhantomData,
        })
    }

    /// Whether the server says, in its lists of kinds, that it does not have this one: then there
    /// are no objects.
    pub(super) async fn is_unknown(&self) -> bool {
        let kinds = kinds(&self.client, &K::api_version(&())).await;
        let is_unknown = kinds.is_ok_and(|kinds| kinds.iter().all(|kind| *kind != K::kind(&())));
        if is_unknown {
            self.requests.forget(K::KIND);
        }
        is_unknown
    }

    /// Returns the path and query of a request for the selected objects.
    fn uri(&self, parameters: &[(&str, &str)]) -> String {
        let Selector { labels, fields } = &self.selector;
        let selectors = [("fieldSelector", &**fields), ("labelSelector", labels)];
        let selectors = selectors
            .iter()
            .filter(|(_, selector)| !selector.is_empty());
        let path = format!("{}?", K::url_path(&(), None));
        let query = path.len();
        let mut uri = Serializer::for_suffix(path, query);
        uri.extend_pairs(selectors.chain(parameters));
        uri.finish()
    }

    /// Sends a request; an answer without success is a failure.
    async fn send(&self, asked: Asked, uri: String) -> Result<Response<Body>, Failure> {
        let broken = |error| Failure::Broken { asked, error };
        let request = Request::get(uri)
            .header(ACCEPT, ACCEPTED)
            .header(ACCEPT_ENCODING, GZIP);
        let request = request.body(Body::empty());
        let request = request.map_err(|error| broken(kube::Error::HttpError(error)))?;
        let answer = self.client.send(request).await.map_err(broken)?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let code = answer.status();
        let retry_after = answer.headers().get(RETRY_AFTER).cloned();
        let encoding = Encoding::of(answer.headers());
        let body = collected(asked, answer).await?;
        let mut status = encoding.status(&body).unwrap_or_else(|| text(code, &body));
        status.code = code.as_u16();
        if let Some(seconds) = retry_after.and_then(|text| text.to_str().ok()?.parse().ok()) {
            status.details.get_or_insert_default().retry_after_seconds = Some(seconds);
        }
        Err(Failure::Refused { asked, status })
    }
}

/// Returns the kinds that the server has in a version of a group; none if it does not list that
/// version. A 404 says nothing: it may be of a proxy, or of a server that starts.
async fn kinds(client: &Client, version: &str) -> kube::Result<Vec<String>> {
    let groups = client.list_api_groups().await?.groups;
    let mut versions = groups.iter().flat_map(|group| &group.versions);
    if !groups.is_empty() && versions.all(|known| known.group_version != version) {
        return Ok(Vec::new());
    }
    let list = client.list_api_group_resources(version).await?;
    Ok(list.resources.into_iter().map(|one| one.kind).collect())
}

async fn collected(asked: Asked, answer: Response<Body>) -> Result<Bytes, Failure> {
    let compression = Compression::of(answer.headers());
    let body = answer.into_body().collect_bytes().await;
    let body = body.map_err(|error| Failure::Broken { asked, error })?;
    let body = compression.whole(body);
    body.map_err(|error| Failure::Unreadable { asked, error })
}

/// Makes a status of an answer that is only text, as of a proxy in between.
fn text(code: StatusCode, body: &Bytes) -> Status {
    const MAX: usize = 200;
    let text = String::from_utf8_lossy(body);
    let text = text.get(..text.floor_char_boundary(MAX)).unwrap_or(&text);
    Status {
        message: text.trim().to_owned(),
        reason: code.canonical_reason().unwrap_or_default().to_owned(),
        ..Status::default()
    }
}

/// The events of a watch.
pub(super) struct Watch<K> {
    connection: Option<CaptureConnection>,
    encoding: Encoding,
    compression: Compression,
    body: Body,
    /// What was received and is no whole event yet.
    received: BytesMut,
    requests: Requests,
    kind: PhantomData<fn() -> K>,
}

impl<K: Followed> Watch<K> {
    /// Notes that nothing comes; the next request goes by another connection.
    pub(super) fn silent(&self) -> Failure {
        if let Some(connection) = &self.connection {
            poison(connection);
        }
        self.requests.silent(K::KIND);
        Failure::Silent
    }

    /// Returns the next event; None at the end of the watch. Nothing is lost if the future is
    /// dropped.
    pub(super) async fn next(&mut self) -> Result<Option<Watched<K>>, Failure> {
        let asked = WATCH;
        let unreadable = |error| Failure::Unreadable { asked, error };
        loop {
            let event = self.encoding.take_event(&mut self.received);
            if let Some(event) = event.map_err(unreadable)? {
                return match self.encoding.event(event).map_err(unreadable)? {
                    Err(status) => Err(Failure::Refused { asked, status }),
                    Ok(event) => Ok(Some(event)),
                };
            }
            let Some(frame) = self.body.frame().await else {
                let is_whole = self.received.iter().all(u8::is_ascii_whitespace);
                return if is_whole {
                    Ok(None)
                } else {
                    Err(Failure::Cut)
                };
            };
            let frame = frame.map_err(|error| Failure::Broken { asked, error })?;
            if let Ok(data) = frame.into_data() {
                self.requests.received(K::KIND);
                let added = self.compression.add(&data, &mut self.received);
                added.map_err(unreadable)?;
            }
        }
    }
}
