// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Objects of the Gateway API as the translation (`crate::gateway`) needs them: classes, Gateways,
//! routes, grants and the labels of namespaces. `original` has what the API server sends, `read`
//! the conversion.

pub mod original;
mod read;
mod selector;
pub mod status;
#[cfg(test)]
pub(crate) mod tests;

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde_json::Value;

pub use selector::{Labels, Selector};

use super::Kind;
use crate::{gateway::names::made_for, object::ObjectName};

/// The API group of all kinds here but Namespace.
pub const GROUP: &str = "gateway.networking.k8s.io";
/// The name of this controller in a GatewayClass and in the status of routes.
pub const CONTROLLER: &str = "portolan.dev/l4";
/// The label of a Service that was made for a Gateway: the Gateway's name, shortened to what a
/// label may hold.
pub const LABEL_GATEWAY: &str = "portolan.dev/gateway";

/// Whether an object was made for a Gateway: a Gateway owns it, and it has the name of the
/// Gateway's Service, with which the names of slices begin. Labels may have been removed, and
/// copies have other names.
pub fn is_made(kind: Kind, metadata: &ObjectMeta) -> bool {
    let name = metadata.name.as_deref().unwrap_or_default();
    let owners = metadata.owner_references.iter().flatten();
    let mut gateways = owners.filter(|owner| owner.kind == "Gateway");
    gateways.any(|gateway| {
        let service = made_for(&ObjectName::new("", &gateway.name)).name;
        let rest = name.strip_prefix(&*service);
        rest.is_some_and(|rest| {
            rest.is_empty() || kind == Kind::EndpointSlice && rest.starts_with('-')
        })
    })
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
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(default)]
pub struct GivenAddress {
    /// None: `IPAddress`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Empty if any address will do.
    pub value: String,
}

/// KUBE: `spec.infrastructure`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Infrastructure {
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// Parameters, which this controller does not have.
    pub parameters_ref: Option<Value>,
}

/// One listener of a Gateway.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listener {
    pub name: String,
    /// In host byte order; from 1 to 65535.
    pub port: u16,
    /// As the object says it: `TCP` and `UDP` are served.
    pub protocol: String,
    /// KUBE: `allowedRoutes.kinds`. Empty: all that fit the protocol.
    pub kinds: Box<[AllowedKind]>,
    pub from: From,
}

/// A kind of routes that may use a listener.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(default)]
pub struct AllowedKind {
    /// None: [`GROUP`].
    pub group: Option<String>,
    pub kind: String,
}

impl Listener {
    /// Returns the kind of routes that fit the listener's protocol; None if it is not served.
    pub fn route_kind(&self) -> Option<Kind> {
        match self.protocol.as_str() {
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
    pub parents: Box<[Reference]>,
    pub backends: Box<[Reference]>,
}

/// A reference to other objects: of a route to what it wants to be attached to, or to a backend;
/// and what a grant allows to refer to, and to be referred to.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Reference {
    pub group: Option<String>,
    pub kind: Option<String>,
    /// None: the namespace of the object that refers.
    pub namespace: Option<String>,
    /// Of a grant: empty for every object of the kind.
    pub name: String,
    /// The name of a listener; None: every listener.
    pub section_name: Option<String>,
    /// In host byte order; None if there is none, or no valid one.
    #[serde(deserialize_with = "read::optional_port")]
    pub port: Option<u16>,
    /// The share of new connections, in proportion to the sum of all weights of the route.
    pub weight: Option<i64>,
}

impl Reference {
    /// Sets what is meant where nothing is said.
    fn complete(&mut self, group: &str, kind: &str) {
        self.group.get_or_insert_with(|| group.to_owned());
        self.kind.get_or_insert_with(|| kind.to_owned());
        for text in [&mut self.namespace, &mut self.section_name] {
            text.take_if(|text| text.is_empty());
        }
    }
    fn is_to(&self, group: &str, kind: &str) -> bool {
        self.group.as_deref() == Some(group) && self.kind.as_deref() == Some(kind)
    }
    fn object(&self, namespace: &Arc<str>) -> ObjectName {
        let other = self.namespace.as_deref().map(Arc::from);
        ObjectName {
            namespace: other.unwrap_or_else(|| Arc::clone(namespace)),
            name: self.name.as_str().into(),
        }
    }
    /// Returns the Gateway that the reference of a route in `namespace` names; None if it names
    /// something else.
    pub fn gateway(&self, namespace: &Arc<str>) -> Option<ObjectName> {
        self.is_to(GROUP, "Gateway").then(|| self.object(namespace))
    }
    /// Returns the Service that the reference of a route in `namespace` names; None if it names
    /// something else.
    pub fn service(&self, namespace: &Arc<str>) -> Option<ObjectName> {
        self.is_to("", "Service").then(|| self.object(namespace))
    }
    pub fn weight(&self) -> u32 {
        u32::try_from(self.weight.unwrap_or(1)).unwrap_or_default()
    }
}

/// A ReferenceGrant: who may refer to what in its namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReferenceGrant {
    pub id: Identity,
    pub from: Box<[Reference]>,
    pub to: Box<[Reference]>,
}

impl ReferenceGrant {
    /// Whether a route of this kind in `namespace` may refer to a Service of the grant's namespace.
    pub fn permits(&self, kind: Kind, namespace: &str, service: &str) -> bool {
        let is_from = |from: &Reference| {
            from.is_to(GROUP, kind.name()) && from.namespace.as_deref() == Some(namespace)
        };
        let is_to =
            |to: &Reference| to.is_to("", "Service") && (to.name.is_empty() || to.name == service);
        self.from.iter().any(is_from) && self.to.iter().any(is_to)
    }
}

/// A namespace's labels, by which listeners choose namespaces.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Namespace {
    pub name: ObjectName,
    pub labels: Labels,
}
