// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Kubernetes' objects in protobuf, with only the fields that the agent reads: prost skips the
//! others. `wire` decodes the server's answers with it. KUBE: the numbers of fields are those of
//! the files `generated.proto` in k8s.io/api and k8s.io/apimachinery; they never change.

mod convert;
mod objects;
#[cfg(test)]
mod tests;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use prost::{Message, bytes::Bytes};

use super::wire::{Status, StatusDetails, Unread, Unreadable};

use objects::Identified;
pub(super) use objects::{EndpointSlice, Named, Node, Service, ServiceCidr};

/// KUBE: a serialized object begins with these bytes; an [`Unknown`] follows.
const MAGIC: &[u8] = b"k8s\0";

/// KUBE: `k8s.io.apimachinery.pkg.runtime.Unknown`, the envelope of every object.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Unknown {
    #[prost(message, optional, tag = "1")]
    pub(super) type_meta: Option<TypeMeta>,
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) raw: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TypeMeta {
    #[prost(string, tag = "2")]
    pub(super) kind: String,
}

/// KUBE: `meta.v1.WatchEvent`. Its object is in an envelope of its own.
#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchEvent {
    #[prost(string, tag = "1")]
    pub(super) kind: String,
    #[prost(message, optional, tag = "2")]
    pub(super) object: Option<RawExtension>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RawExtension {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) raw: Bytes,
}

/// A list of objects, each of which is not decoded yet.
#[derive(Clone, PartialEq, Message)]
pub(super) struct List {
    #[prost(message, optional, tag = "1")]
    pub(super) metadata: Option<ListMeta>,
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub(super) items: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ListMeta {
    #[prost(string, tag = "2")]
    pub(super) resource_version: String,
    #[prost(string, tag = "3")]
    pub(super) more: String,
}

/// KUBE: `meta.v1.Status`.
#[derive(Clone, PartialEq, Message)]
struct Refusal {
    #[prost(string, tag = "3")]
    message: String,
    #[prost(string, tag = "4")]
    reason: String,
    #[prost(message, optional, tag = "5")]
    details: Option<RefusalDetails>,
    #[prost(int32, tag = "6")]
    code: i32,
}

#[derive(Clone, PartialEq, Message)]
struct RefusalDetails {
    #[prost(int32, tag = "5")]
    retry_after_seconds: i32,
}

/// Decodes something with its envelope.
pub(super) fn unwrapped<T: Message + Default>(bytes: &Bytes) -> Result<T, Unreadable> {
    Ok(T::decode(envelope(bytes)?.raw)?)
}

/// Decodes an object without its envelope; if it cannot be read, what identifies it.
pub(super) fn object<T, K>(bytes: Bytes) -> Result<K, Unread>
where
    T: Message + Default + Into<K>,
{
    T::decode(bytes.clone())
        .map(Into::into)
        .map_err(|error| Unread {
            metadata: Box::new(metadata(bytes)),
            error: error.into(),
        })
}

/// Decodes what identifies an object without its envelope; nothing if that cannot be read.
fn metadata(bytes: Bytes) -> ObjectMeta {
    let object = Identified::decode(bytes).unwrap_or_default();
    object.metadata.unwrap_or_default().into()
}

/// Decodes the `Status` of an answer or of an event ERROR.
pub(super) fn status(bytes: &Bytes) -> Result<Status, Unreadable> {
    let refusal: Refusal = unwrapped(bytes)?;
    let details = refusal.details.unwrap_or_default();
    Ok(Status {
        code: u16::try_from(refusal.code).unwrap_or_default(),
        message: refusal.message,
        reason: refusal.reason,
        details: Some(StatusDetails {
            retry_after_seconds: u32::try_from(details.retry_after_seconds).ok(),
        }),
    })
}

pub(super) fn envelope(bytes: &Bytes) -> Result<Unknown, Unreadable> {
    if !bytes.starts_with(MAGIC) {
        return Err(Unreadable::NoEnvelope);
    }
    Ok(Unknown::decode(bytes.slice(MAGIC.len()..))?)
}
