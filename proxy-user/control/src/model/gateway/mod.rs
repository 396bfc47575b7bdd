// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Objects of the Gateway API as the translation (`crate::gateway`) needs them: classes, Gateways,
//! routes, grants and the labels of namespaces. `original` has what the API server sends, `read`
//! the conversion.

pub mod original;
mod read;
mod selector;
pub mod status;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

pub use selector::{Labels, Selector};

use super::Kind;
use crate::object::ObjectName;

/// The API group of all kinds here but Namespace.
pub const GROUP: &str = "gateway.networking.k8s.io";
/// The name of this controller in a GatewayClass and in the status of routes.
pub const CONTROLLER: &str = "portolan.dev/l4";
/// The label of a Service that was made for a Gateway: the Gateway's name, shortened to what a
/// label may hold.
pub const LABEL_GATEWAY: &str = "portolan.dev/gateway";
/// The annotation of such a Service with the hash of what was applied.
pub const ANNOTATION_APPLIED: &str = "portolan.dev/applied";

/// Whether an object was made for a Gateway: it has the label, and a Gateway owns it. Somebody may
/// have copied it with its labels.
pub fn is_made(metadata: &ObjectMeta) -> bool {
    let mut owners = metadata.owner_references.iter().flatten();
    let labels = metadata.labels.as_ref();
    labels.is_some_and(|labels| labels.contains_key(LABEL_GATEWAY))
        && owners.any(|owner| owner.kind == "Gateway")
}

/// What identifies an object of any of these kinds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    pub name: ObjectName,
    /// `object::uid_hash` of the original, for events about it.
    pub uid_hash: u64,
    /// Creation time in seconds since 1970; an object without one counts as the newest.
    pub created: i64,
    /// KUBE: `metadata.generation`, which a status names as observed.
    pub generation: i64,
    /// The hash of our part of the object's status, see [`status::digest`].
    pub observed: u64,
}

/// A GatewayClass.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GatewayClass {
    pub id: Identity,
    /// Whether the class names [`CONTROLLER`].
    pub is_ours: bool,
    /// Whether it refers to parameters, which this controller does not have.
    pub has_parameters: bool,
}

/// A Gateway of any class.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gateway {
    pub id: Identity,
    /// For the owner reference of the Service that is made for it.
    pub uid: Arc<str>,
    pub class: Arc<str>,
    pub addresses: Box<[GivenAddress]>,
    pub listeners: Box<[Listener]>,
    /// Labels and annotations for the Service that is made for it.
    pub infrastructure: Infrastructure,
}

/// An address that a Gateway asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GivenAddress {
    /// `IPAddress` if the object does not say it.
    pub kind: Arc<str>,
    /// Empty if any address will do.
    pub value: Arc<str>,
}

/// KUBE: `spec.infrastructure`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Infrastructure {
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// Whether it refers to parameters, which this controller does not have.
    pub has_parameters: bool,
}

/// One listener of a Gateway.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listener {
    pub name: Arc<str>,
    /// In host byte order; from 1 to 65535.
    pub port: u16,
    /// As the object says it: `TCP` and `UDP` are served.
    pub protocol: Arc<str>,
    /// KUBE: `allowedRoutes.kinds`, each a group and a kind. Empty: all that fit the protocol.
    pub kinds: Box<[(Arc<str>, Arc<str>)]>,
    pub from: From,
}

impl Listener {
    /// Returns the kind of routes that fit the listener's protocol; None if it is not served.
    pub fn route_kind(&self) -> Option<Kind> {
        match &*self.protocol {
            "TCP" => Some(Kind::TcpRoute),
            "UDP" => Some(Kind::UdpRoute),
            _ => None,
        }
    }
}

/// KUBE: `allowedRoutes.namespaces`, the namespaces whose routes may use a listener.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum From {
    /// The Gateway's own namespace.
    Same,
    All,
    Matching(Selector),
    Nowhere,
}

/// A TCPRoute or UDPRoute.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Route {
    pub id: Identity,
    pub kind: Kind,
    pub parents: Box<[ParentRef]>,
    pub backends: Box<[BackendRef]>,
}

/// A reference of a route to what it wants to be attached to.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ParentRef {
    pub group: Arc<str>,
    pub kind: Arc<str>,
    /// None: the route's own namespace.
    pub namespace: Option<Arc<str>>,
    pub name: Arc<str>,
    /// The name of a listener; None: every listener.
    pub section: Option<Arc<str>>,
    pub port: Option<u16>,
}

impl ParentRef {
    /// Returns the Gateway that the reference of a route in `namespace` names; None if it names
    /// something else.
    pub fn gateway(&self, namespace: &Arc<str>) -> Option<ObjectName> {
        (&*self.group == GROUP && &*self.kind == "Gateway").then(|| ObjectName {
            namespace: Arc::clone(self.namespace.as_ref().unwrap_or(namespace)),
            name: Arc::clone(&self.name),
        })
    }
}

/// A reference of a route to a backend.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct BackendRef {
    pub group: Arc<str>,
    pub kind: Arc<str>,
    /// None: the route's own namespace.
    pub namespace: Option<Arc<str>>,
    pub name: Arc<str>,
    /// In host byte order; None if there is none, or no valid one.
    pub port: Option<u16>,
    /// The share of new connections, in proportion to the sum of all weights of the route.
    pub weight: u32,
}

impl BackendRef {
    /// Returns the Service that the reference of a route in `namespace` names; None if it names
    /// something else.
    pub fn service(&self, namespace: &Arc<str>) -> Option<ObjectName> {
        (self.group.is_empty() && &*self.kind == "Service").then(|| ObjectName {
            namespace: Arc::clone(self.namespace.as_ref().unwrap_or(namespace)),
            name: Arc::clone(&self.name),
        })
    }
}

/// A ReferenceGrant: who may refer to what in its namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReferenceGrant {
    pub id: Identity,
    pub from: Box<[GrantFrom]>,
    pub to: Box<[GrantTo]>,
}

impl ReferenceGrant {
    /// Whether a route of this kind in `namespace` may refer to a Service of the grant's namespace.
    pub fn permits(&self, kind: Kind, namespace: &str, service: &str) -> bool {
        let from = self.from.iter().any(|from| {
            &*from.group == GROUP && *from.kind == *kind.name() && &*from.namespace == namespace
        });
        from && self.to.iter().any(|to| {
            to.group.is_empty()
                && &*to.kind == "Service"
                && to.name.as_ref().is_none_or(|name| &**name == service)
        })
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GrantFrom {
    pub group: Arc<str>,
    pub kind: Arc<str>,
    pub namespace: Arc<str>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GrantTo {
    pub group: Arc<str>,
    pub kind: Arc<str>,
    /// None: every object of the kind.
    pub name: Option<Arc<str>>,
}

/// A namespace's labels, by which listeners choose namespaces.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Namespace {
    pub name: ObjectName,
    pub labels: Labels,
}
