// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Kubernetes' objects in protobuf, with only the fields that the agent reads: prost skips the
//! others. `wire` decodes the server's answers with it. KUBE: the numbers of fields are those of
//! the files `generated.proto` in k8s.io/api and k8s.io/apimachinery; they never change.

/// Defines messages of protobuf. Each field has its number, and how prost calls its form.
macro_rules! messages {
    ($($(#[$about:meta])* $name:ident {
        $($number:literal [$($form:tt)*] $field:ident: $type:ty,)*
    })*) => {
        $(
            $(#[$about])*
            #[derive(Clone, PartialEq, Message)]
            pub(in crate::api_server) struct $name {
                $(
                    #[prost($($form)*, tag = $number)]
                    pub(in crate::api_server) $field: $type,
                )*
            }
        )*
    };
}

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

messages! {
    /// KUBE: `k8s.io.apimachinery.pkg.runtime.Unknown`, the envelope of every object.
    Unknown {
        1 [message, optional] type_meta: Option<TypeMeta>,
        2 [bytes = "bytes"] raw: Bytes,
    }
    TypeMeta {
        2 [string] kind: String,
    }
    /// KUBE: `meta.v1.WatchEvent`. Its object is in an envelope of its own.
    WatchEvent {
        1 [string] kind: String,
        2 [message, optional] object: Option<RawExtension>,
    }
    RawExtension {
        1 [bytes = "bytes"] raw: Bytes,
    }
    /// A list of objects, each of which is not decoded yet.
    List {
        1 [message, optional] metadata: Option<ListMeta>,
        2 [bytes = "bytes", repeated] items: Vec<Bytes>,
    }
    ListMeta {
        2 [string] resource_version: String,
        3 [string] more: String,
    }
    /// KUBE: `meta.v1.Status`.
    Refusal {
        3 [string] message: String,
        4 [string] reason: String,
        5 [message, optional] details: Option<RefusalDetails>,
        6 [int32] code: i32,
    }
    RefusalDetails {
        5 [int32] retry_after_seconds: i32,
    }
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
