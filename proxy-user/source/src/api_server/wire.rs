// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Decodes the answers of the API server: lists, the events of watches and refusals, in protobuf
//! or, from a server or a proxy that does not speak it, in JSON. Called by `watch`.

use std::io::Write;

use flate2::write::MultiGzDecoder;
use http::{
    HeaderMap, HeaderValue,
    header::{CONTENT_ENCODING, CONTENT_TYPE},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, ObjectMeta};
use prost::{
    Message,
    bytes::{Buf, Bytes, BytesMut},
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use super::{follow::Followed, protobuf};

/// What the agent accepts, in the order of preference.
pub(super) const ACCEPTED: HeaderValue =
    HeaderValue::from_static("application/vnd.kubernetes.protobuf,application/json");
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

pub(super) const GZIP: HeaderValue = HeaderValue::from_static("gzip");

/// KUBE: the annotation of the bookmark at the end of a streamed list.
const LIST_END: &str = "k8s.io/initial-events-end";

/// No object is larger: etcd's limit is 1.5 MiB. In bytes.
const MAX_FRAME: usize = 64 << 20;

/// How the server encodes an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Encoding {
    Protobuf,
    Json,
}

/// How the server compresses an answer. KUBE: lists of more than 128 KiB; since 1.37 also watches
/// that begin with a list, each event as a gzip member of its own (`WatchListCompression`).
pub(super) enum Compression {
    None,
    Gzip(Box<MultiGzDecoder<Vec<u8>>>),
}

impl Compression {
    /// Returns the compression of the answer with these headers.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        if headers.get(CONTENT_ENCODING) == Some(&GZIP) {
            Self::Gzip(Box::new(MultiGzDecoder::new(Vec::new())))
        } else {
            Self::None
        }
    }

    /// Returns a whole answer, decompressed.
    pub(super) fn whole(mut self, received: Bytes) -> Result<Bytes, Unreadable> {
        if matches!(self, Self::None) {
            return Ok(received);
        }
        let mut plain = BytesMut::new();
        self.add(&received, &mut plain)?;
        Ok(plain.freeze())
    }

    /// Appends what was received to `plain`, decompressed as far as it goes.
    pub(super) fn add(&mut self, received: &[u8], plain: &mut BytesMut) -> Result<(), Unreadable> {
        match self {
            Self::None => plain.extend_from_slice(received),
            Self::Gzip(decoder) => {
                let added = decoder.write_all(received).and_then(|()| decoder.flush());
                added.map_err(Unreadable::Gzip)?;
                plain.extend_from_slice(decoder.get_ref());
                decoder.get_mut().clear();
            }
        }
        Ok(())
    }
}

/// Why an answer cannot be understood.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unreadable {
    #[error("it is not protobuf as Kubernetes writes it")]
    Protobuf(#[from] prost::DecodeError),
    #[error("it does not begin like an object of Kubernetes")]
    NoEnvelope,
    #[error("it is not compressed as gzip")]
    Gzip(#[source] std::io::Error),
    #[error("it is not JSON as Kubernetes writes it")]
    Json(#[from] serde_json::Error),
    #[error("an event of {0} bytes, more than any object has")]
    TooLong(usize),
    #[error("an event of the unknown type {0:?}")]
    UnknownEvent(String),
}

/// KUBE: `meta.v1.Status`, the reason why a request failed or a watch ends.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    /// The HTTP status; 0 if unknown.
    pub(super) code: u16,
    pub(super) message: String,
    /// The reason in one word.
    pub(super) reason: String,
    pub(super) details: Option<StatusDetails>,
}

#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct StatusDetails {
    pub(super) retry_after_seconds: Option<u32>,
}

/// An object that cannot be read.
#[derive(Debug)]
pub(super) struct Unread {
    /// What identifies it, as far as that can be read; not more.
    pub(super) metadata: Box<ObjectMeta>,
    pub(super) error: Unreadable,
}

/// An event of a watch.
pub(super) enum Watched<K> {
    /// The object was added or changed.
    Applied(Result<K, Unread>),
    Deleted(Box<ObjectMeta>),
    Bookmark {
        version: String,
        /// Whether a streamed list ends here.
        ends_list: bool,
    },
}

/// A list, or a part of one.
pub(super) struct Page<K> {
    pub(super) version: String,
    /// Asks for the next part; empty at the end.
    pub(super) more: String,
    pub(super) items: Vec<Result<K, Unread>>,
}

#[derive(Deserialize)]
struct JsonEvent {
    #[serde(rename = "type")]
    kind: String,
    object: Value,
}

#[derive(Deserialize)]
struct JsonList {
    metadata: ListMeta,
    #[serde(default)]
    items: Vec<Value>,
}

impl Encoding {
    /// Returns the encoding of the answer with these headers; JSON if they say none that is known.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let name = headers.get(CONTENT_TYPE);
        let name = name.and_then(|value| value.to_str().ok());
        if name.is_some_and(|name| name.starts_with(PROTOBUF)) {
            Self::Protobuf
        } else {
            Self::Json
        }
    }

    /// Takes the next event of a watch off the front of `received`; None if it is not all there.
    /// KUBE: in protobuf the length goes before an event, 4 bytes, most significant first; in JSON
    /// each is a line.
    pub(super) fn take_event(self, received: &mut BytesMut) -> Result<Option<Bytes>, Unreadable> {
        match self {
            Self::Protobuf => {
                let Some(length) = received.first_chunk().copied().map(u32::from_be_bytes) else {
                    return Ok(None);
                };
                let length = length as usize;
                if length > MAX_FRAME {
                    return Err(Unreadable::TooLong(length));
                }
                let start = size_of::<u32>();
                if received.len() < start + length {
                    received.reserve(start + length - received.len());
                    return Ok(None);
                }
                received.advance(start);
                Ok(Some(received.split_to(length).freeze()))
            }
            Self::Json => {
                if received.len() > MAX_FRAME {
                    return Err(Unreadable::TooLong(received.len()));
                }
                let end = received.iter().position(|byte| *byte == b'\n');
                Ok(end.map(|end| received.split_to(end + 1).freeze()))
            }
        }
    }

    /// Decodes an event of a watch; the inner error is that of an event ERROR.
    pub(super) fn event<K: Followed>(
        self,
        event: Bytes,
    ) -> Result<Result<Watched<K>, Status>, Unreadable> {
        match self {
            Self::Protobuf => {
                let event = protobuf::WatchEvent::decode(event)?;
                let object = event.object.unwrap_or_default().raw;
                if event.kind == "ERROR" {
                    return Ok(Err(protobuf::status(&object)?));
                }
                let object = protobuf::envelope(&object)?.raw;
                if event.kind == "BOOKMARK" {
                    let object = protobuf::Named::decode(object)?;
                    return Ok(Ok(bookmark(&object.metadata.unwrap_or_default().into())));
                }
                let object = protobuf::object::<K::Protobuf, K>(object);
                watched(&event.kind, object).map(Ok)
            }
            Self::Json => {
                let JsonEvent { kind, mut object } = json(&event)?;
                match &*kind {
                    "ERROR" => Ok(Err(serde_json::from_value(object)?)),
                    // The object of a bookmark may be of another kind.
                    "BOOKMARK" => {
                        let metadata = serde_json::from_value(object["metadata"].take())?;
                        Ok(Ok(bookmark(&metadata)))
                    }
                    _ => watched(&kind, of_json(object)).map(Ok),
                }
            }
        }
    }

    /// Decodes a list.
    pub(super) fn list<K: Followed>(self, answer: &Bytes) -> Result<Page<K>, Unreadable> {
        match self {
            Self::Protobuf => {
                let list: protobuf::List = protobuf::unwrapped(answer)?;
                let metadata = list.metadata.unwrap_or_default();
                let items = list.items.into_iter();
                Ok(Page {
                    version: metadata.resource_version,
                    more: metadata.more,
                    items: items.map(protobuf::object::<K::Protobuf, K>).collect(),
                })
            }
            Self::Json => {
                let list: JsonList = json(answer)?;
                Ok(Page {
                    version: list.metadata.resource_version.unwrap_or_default(),
                    more: list.metadata.continue_.unwrap_or_default(),
                    items: list.items.into_iter().map(of_json).collect(),
                })
            }
        }
    }

    /// Decodes the text of a refusal; None if it is no `Status`, as from a proxy in between.
    pub(super) fn status(self, answer: &Bytes) -> Option<Status> {
        match self {
            Self::Protobuf => protobuf::status(answer).ok(),
            Self::Json => serde_json::from_slice(answer).ok(),
        }
    }
}

/// Decodes JSON; what is no UTF-8 becomes U+FFFD.
fn json<T: DeserializeOwned>(text: &[u8]) -> Result<T, Unreadable> {
    Ok(serde_json::from_str(&String::from_utf8_lossy(text))?)
}

/// Makes an object of its JSON; if it cannot be read, what identifies it.
fn of_json<K: Followed>(mut object: Value) -> Result<K, Unread> {
    let read = K::deserialize(&object);
    let metadata = object.get_mut("metadata").map(Value::take);
    read.map_err(|error| Unread {
        metadata: Box::new(
            serde_json::from_value(metadata.unwrap_or_default()).unwrap_or_default(),
        ),
        error: error.into(),
    })
}

fn watched<K: Followed>(kind: &str, object: Result<K, Unread>) -> Result<Watched<K>, Unreadable> {
    match kind {
        "ADDED" | "MODIFIED" => Ok(Watched::Applied(object)),
        "DELETED" => Ok(Watched::Deleted(match object {
            Ok(object) => Box::new(object.meta().clone()),
            Err(unread) => unread.metadata,
        })),
        other => Err(Unreadable::UnknownEvent(other.to_owned())),
    }
}

fn bookmark<K>(metadata: &ObjectMeta) -> Watched<K> {
    let annotations = metadata.annotations.as_ref();
    let end = annotations.and_then(|all| all.get(LIST_END));
    Watched::Bookmark {
        version: metadata.resource_version.clone().unwrap_or_default(),
        ends_list: end.is_some_and(|value| value == "true"),
    }
}
