// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The agent's own compact form of the Kubernetes objects, and the conversion into it. `source`
//! converts each object as it is read and drops the original. A bad part of an object becomes a
//! warning.

pub mod endpoint;
pub mod family;
pub mod gateway;
pub mod node;
pub mod parse;
pub mod service;
pub mod service_cidr;

#[cfg(test)]
mod tests;

use std::{collections::HashSet, fmt, hash::Hash, sync::Arc};

use k8s_openapi::{
    api::{core, discovery, networking},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

pub use endpoint::{Conditions, Endpoint, EndpointSlice, Endpoints, MadeSlice, Site, SlicePort};
pub use gateway::{Gateway, GatewayClass, Namespace, ReferenceGrant, Route, original};
pub use node::Node;
pub use service::{ClientAddress, Made, Role, Selection, Service, ServicePort, SourceRanges};
pub use service_cidr::ServiceCidr;

use crate::object::{ObjectName, Warning};

/// KUBE: services and slices with this label, whatever its value, belong to another proxy.
pub const LABEL_PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
/// KUBE: services and slices with this label, whatever its value, are for no proxy.
pub const LABEL_HEADLESS: &str = "service.kubernetes.io/headless";

/// The kinds of object that the agent reads.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    Node,
    Service,
    EndpointSlice,
    ServiceCidr,
    /// A namespace's labels, which only the Gateway API asks for.
    Namespace,
    GatewayClass,
    Gateway,
    TcpRoute,
    UdpRoute,
    ReferenceGrant,
}

impl Kind {
    /// The kinds that are read only for the Gateway API.
    pub const OF_GATEWAYS: [Self; 6] = [
        Self::Namespace,
        Self::GatewayClass,
        Self::Gateway,
        Self::TcpRoute,
        Self::UdpRoute,
        Self::ReferenceGrant,
    ];
    /// Returns the kind's name, as objects have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Node => "Node",
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
            Self::ServiceCidr => "ServiceCIDR",
            Self::Namespace => "Namespace",
            Self::GatewayClass => "GatewayClass",
            Self::Gateway => "Gateway",
            Self::TcpRoute => "TCPRoute",
            Self::UdpRoute => "UDPRoute",
            Self::ReferenceGrant => "ReferenceGrant",
        }
    }
    /// Whether objects of the kind are in a namespace.
    pub fn is_namespaced(self) -> bool {
        !matches!(
            self,
            Self::Node | Self::ServiceCidr | Self::Namespace | Self::GatewayClass
        )
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Kind and name of an object; the namespace is empty if the kind has none.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ObjectKey {
    pub kind: Kind,
    pub name: ObjectName,
}

impl ObjectKey {
    pub fn new(kind: Kind, namespace: &str, name: &str) -> Self {
        let name = ObjectName::new(namespace, name);
        Self { kind, name }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, name } = self;
        if kind.is_namespaced() {
            write!(f, "{kind} {name}")
        } else {
            write!(f, "{kind} {}", name.name)
        }
    }
}

/// One object in the agent's own form, shared by the source that has read it and the cluster state.
#[derive(Clone, PartialEq, Debug)]
pub enum Object {
    Node(Arc<Node>),
    Service(Arc<Service>),
    EndpointSlice(Arc<EndpointSlice>),
    ServiceCidr(Arc<ServiceCidr>),
    Namespace(Arc<Namespace>),
    GatewayClass(Arc<GatewayClass>),
    Gateway(Arc<Gateway>),
    /// A TCPRoute or a UDPRoute, as its field `kind` says.
    Route(Arc<Route>),
    ReferenceGrant(Arc<ReferenceGrant>),
}

impl Object {
    /// Returns the object's kind, its name, and its `object::uid_hash`: 0 for a kind that does not
    /// keep it.
    fn identity(&self) -> (Kind, &ObjectName, u64) {
        match self {
            Self::Node(it) => (Kind::Node, &it.name, 0),
            Self::Service(it) => (Kind::Service, &it.name, it.uid_hash),
            Self::EndpointSlice(it) => (Kind::EndpointSlice, &it.name, it.uid_hash),
            Self::ServiceCidr(it) => (Kind::ServiceCidr, &it.name, 0),
            Self::Namespace(it) => (Kind::Namespace, &it.name, 0),
            Self::GatewayClass(it) => (Kind::GatewayClass, &it.id.name, it.id.uid_hash),
            Self::Gateway(it) => (Kind::Gateway, &it.id.name, it.id.uid_hash),
            Self::Route(it) => (it.kind, &it.id.name, it.id.uid_hash),
            Self::ReferenceGrant(it) => (Kind::ReferenceGrant, &it.id.name, it.id.uid_hash),
        }
    }
    pub fn kind(&self) -> Kind {
        self.identity().0
    }
    pub fn name(&self) -> &ObjectName {
        self.identity().1
    }
    pub fn uid_hash(&self) -> u64 {
        self.identity().2
    }
    pub fn key(&self) -> ObjectKey {
        let (kind, name, _) = self.identity();
        let name = name.clone();
        ObjectKey { kind, name }
    }
}

/// An object in the agent's own form, and the warnings about faulty parts of the original.
pub type Converted<T> = (T, Vec<Warning>);

/// A Kubernetes type that can be converted into the agent's own form.
pub trait Original {
    const KIND: Kind;
    /// Fails only if the object has no name.
    fn convert(&self, converter: &mut Converter) -> Result<Converted<Object>, Warning>;
}

macro_rules! originals {
    ($($original:ty => $kind:ident as $object:ident by $convert:ident;)*) => {
        $(impl Original for $original {
            const KIND: Kind = Kind::$kind;
            fn convert(&self, converter: &mut Converter) -> Result<Converted<Object>, Warning> {
                let (object, warnings) = converter.$convert(self)?;
                Ok((Object::$object(object.into()), warnings))
            }
        })*
    };
}
originals! {
    core::v1::Node => Node as Node by node;
    core::v1::Service => Service as Service by service;
    discovery::v1::EndpointSlice => EndpointSlice as EndpointSlice by endpoint_slice;
    networking::v1::ServiceCIDR => ServiceCidr as ServiceCidr by service_cidr;
    core::v1::Namespace => Namespace as Namespace by namespace;
    original::GatewayClass => GatewayClass as GatewayClass by gateway_class;
    original::Gateway => Gateway as Gateway by gateway;
    original::TCPRoute => TcpRoute as Route by route;
    original::UDPRoute => UdpRoute as Route by route;
    original::ReferenceGrant => ReferenceGrant as ReferenceGrant by reference_grant;
}

/// Converts Kubernetes' objects into the agent's own form. It knows this node's name, so "local"
/// and "hinted for this node" become single bits, and it shares equal strings.
#[derive(Debug, Default)]
pub struct Converter {
    pub node_name: Arc<str>,
    /// Whether services may have link-local addresses.
    pub link_local: bool,
    /// Whether the Gateway API's objects are read: then Services that were made for a Gateway are
    /// served as a part of it.
    pub gateways: bool,
    /// Whether each endpoint's node is kept: what becomes of its clients' addresses depends on it.
    pub keeps_nodes: bool,
    /// Whether what was made for Gateways is kept as it is: the controller compares it with what is
    /// wanted.
    pub keeps_made: bool,
    /// Only Services with this value of [`LABEL_PROXY_NAME`] are served; None for those without the
    /// label.
    pub proxy_name: Option<String>,
    texts: Interner<str>,
    sites: Interner<Site>,
}

impl Converter {
    pub fn new(node_name: &str) -> Self {
        Self {
            node_name: node_name.into(),
            ..Self::default()
        }
    }
    /// Whether another proxy serves the object. KUBE: kube-proxy leaves all Services alone that
    /// have the label, whatever its value.
    pub(crate) fn is_of_another_proxy(&self, metadata: &ObjectMeta) -> bool {
        label(metadata, LABEL_PROXY_NAME) != self.proxy_name.as_deref()
    }
    pub(crate) fn text(&mut self, text: &str) -> Arc<str> {
        self.texts.intern(text, |text| Arc::from(text))
    }
    /// Returns the object's name; fails if it has none.
    pub fn object_name(
        &mut self,
        kind: Kind,
        metadata: &ObjectMeta,
    ) -> Result<ObjectName, Warning> {
        let Some(name) = metadata.name.as_deref().filter(|name| !name.is_empty()) else {
            return Err(Warning {
                object: kind.to_string(),
                reason: "metadata.name is missing, so the object is ignored; give it a name".into(),
            });
        };
        let namespace = match (kind, metadata.namespace.as_deref()) {
            (kind, _) if !kind.is_namespaced() => "",
            // KUBE: an object without a namespace is in "default".
            (_, None | Some("")) => "default",
            (_, Some(namespace)) => namespace,
        };
        Ok(ObjectName {
            namespace: self.text(namespace),
            name: self.text(name),
        })
    }
}

/// Keeps one shared copy of equal values, and drops copies that nothing else uses.
#[derive(Debug)]
struct Interner<T: ?Sized> {
    known: HashSet<Arc<T>>,
    tidy_at: usize,
}

impl<T: ?Sized> Default for Interner<T> {
    fn default() -> Self {
        Self {
            known: HashSet::new(),
            tidy_at: 1024,
        }
    }
}

impl<T: ?Sized + Hash + Eq> Interner<T> {
    fn intern(&mut self, value: &T, share: impl FnOnce(&T) -> Arc<T>) -> Arc<T> {
        if let Some(known) = self.known.get(value) {
            return Arc::clone(known);
        }
        if self.known.len() >= self.tidy_at {
            self.known.retain(|known| Arc::strong_count(known) > 1);
            self.tidy_at = (2 * self.known.len()).max(1024);
        }
        let shared = share(value);
        self.known.insert(Arc::clone(&shared));
        shared
    }
}

/// The most warnings about one object. Without a limit, a slice with a thousand bad endpoints would
/// have as many warnings.
const MAX_COMPLAINTS: usize = 20;

/// Collects the warnings about one object.
pub(crate) struct Complaints {
    object: String,
    warnings: Vec<Warning>,
    /// Number of warnings beyond the limit.
    unsaid: usize,
}

impl Complaints {
    pub(crate) fn about(kind: Kind, name: &ObjectName) -> Self {
        let name = name.clone();
        Self {
            object: ObjectKey { kind, name }.to_string(),
            warnings: Vec::new(),
            unsaid: 0,
        }
    }
    pub(crate) fn add(&mut self, reason: String) {
        if self.warnings.len() == MAX_COMPLAINTS {
            self.unsaid += 1;
            return;
        }
        let object = self.object.clone();
        let warning = Warning { object, reason };
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }
    pub(crate) fn into_warnings(mut self) -> Vec<Warning> {
        if self.unsaid > 0 {
            let unsaid = self.unsaid;
            self.warnings.push(Warning {
                object: self.object,
                reason: format!(
                    "{unsaid} more faults are not shown; correct the ones above to see them"
                ),
            });
        }
        self.warnings
    }
}

/// Returns the value of an object's label.
pub(crate) fn label<'a>(metadata: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    metadata.labels.as_ref()?.get(key).map(String::as_str)
}

/// Returns the value of an object's annotation.
pub fn annotation<'a>(metadata: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// Returns the creation time in seconds since 1970; an object without one counts as the newest.
pub(crate) fn created(metadata: &ObjectMeta) -> i64 {
    let time = metadata.creation_timestamp.as_ref();
    time.map_or(i64::MAX, |time| time.0.as_second())
}
