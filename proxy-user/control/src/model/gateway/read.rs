// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Converts the Gateway API's objects. A part that cannot be read is a warning.

use k8s_openapi::api::core::v1 as core;
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::Value;

use super::{
    AllowedKind, CONTROLLER, From, GROUP, Gateway, GatewayClass, GivenAddress, Identity,
    Infrastructure, Labels, Listener, Namespace, Reference, ReferenceGrant, Route, Selector,
    original::{self, Custom},
    status,
};
use crate::{
    model::{Complaints, Converted, Converter, Kind, Original, created},
    object::{Warning, uid_hash},
};

/// The most that a weight may be. KUBE: the API's limit.
const MAX_WEIGHT: i64 = 1_000_000;

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ClassSpec {
    controller_name: String,
    parameters_ref: Option<Value>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct GatewaySpec {
    gateway_class_name: String,
    addresses: Vec<GivenAddress>,
    listeners: Vec<Value>,
    infrastructure: Infrastructure,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ListenerSpec {
    name: String,
    port: i64,
    protocol: String,
    allowed_routes: AllowedRoutes,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AllowedRoutes {
    kinds: Vec<AllowedKind>,
    namespaces: NamespacesSpec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NamespacesSpec {
    from: Option<String>,
    selector: Option<Value>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RouteSpec {
    parent_refs: Vec<Reference>,
    rules: Vec<RuleSpec>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RuleSpec {
    backend_refs: Vec<Reference>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct GrantSpec {
    from: Vec<Reference>,
    to: Vec<Reference>,
}

/// Reads a part of an object; an unreadable one counts as empty, with a warning.
fn part<T: DeserializeOwned + Default>(
    field: &str,
    value: &Value,
    complaints: &mut Complaints,
) -> T {
    if value.is_null() {
        return T::default();
    }
    serde_path_to_error::deserialize(value).unwrap_or_else(|error| {
        complaints.add(format!(
            "{field}.{}: {}; it is ignored, correct it",
            error.path(),
            error.inner()
        ));
        T::default()
    })
}

/// Reads a listener's selector. KUBE: none selects nothing, and an empty one everything.
fn selector(field: &str, value: Option<&Value>, complaints: &mut Complaints) -> Option<Selector> {
    let Some(value) = value else {
        complaints.add(format!(
            "{field} is missing; no route may use the listener, set it, or from: All"
        ));
        return None;
    };
    let read = serde_path_to_error::deserialize(value);
    let refuse = |error: &serde_path_to_error::Error<serde_json::Error>| {
        let (path, why) = (error.path(), error.inner());
        complaints.add(format!(
            "{field}.{path}: {why}; no route may use the listener, correct it"
        ));
    };
    read.inspect_err(refuse).ok()
}

/// Returns a port number; None if it is no valid one.
fn port(number: i64) -> Option<u16> {
    let number = u16::try_from(number).ok();
    number.filter(|number| *number != 0)
}

pub(super) fn optional_port<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u16>, D::Error> {
    Ok(Option::deserialize(from)?.and_then(port))
}

/// Reads a listener; None without a valid port.
fn listener_of(field: &str, value: &Value, complaints: &mut Complaints) -> Option<Listener> {
    let spec: ListenerSpec = part(field, value, complaints);
    let Some(port) = port(spec.port) else {
        complaints.add(format!(
            "{field}: port {} is not between 1 and 65535; this listener is ignored, correct its number",
            spec.port
        ));
        return None;
    };
    let allowed = spec.allowed_routes;
    let from = match allowed.namespaces.from.as_deref() {
        None | Some("Same") => From::Same,
        Some("All") => From::All,
        Some("Selector") => {
            let field = format!("{field}.allowedRoutes.namespaces.selector");
            selector(&field, allowed.namespaces.selector.as_ref(), complaints)
                .map_or(From::Nowhere, From::Matching)
        }
        Some("None") => From::Nowhere,
        Some(other) => {
            complaints.add(format!(
                "{field}.allowedRoutes.namespaces.from {other:?} is none of All, Same, Selector and None; no route may use the listener, set one of them",
            ));
            From::Nowhere
        }
    };
    Some(Listener {
        name: spec.name,
        port,
        protocol: spec.protocol,
        kinds: allowed.kinds.into(),
        from,
    })
}

impl Converter {
    /// Returns what identifies an object, its spec, and the place for warnings about it.
    fn begin<T: Original + Custom, S: DeserializeOwned + Default>(
        &mut self,
        object: &T,
    ) -> Result<(Identity, S, Complaints), Warning> {
        let (metadata, spec, status) = object.parts();
        let id = Identity {
            name: self.object_name(T::KIND, metadata)?,
            uid_hash: uid_hash(metadata.uid.as_deref()),
            created: created(metadata),
            generation: metadata.generation.unwrap_or_default(),
            observed: status::digest(T::KIND, status),
        };
        let mut complaints = Complaints::about(T::KIND, &id.name);
        let spec = part("spec", spec, &mut complaints);
        Ok((id, spec, complaints))
    }

    /// Converts a GatewayClass; fails only if it has no name.
    pub fn gateway_class(
        &mut self,
        object: &original::GatewayClass,
    ) -> Result<Converted<GatewayClass>, Warning> {
        let (id, spec, complaints): (_, ClassSpec, _) = self.begin(object)?;
        let class = GatewayClass {
            id,
            is_ours: spec.controller_name == CONTROLLER,
            has_parameters: spec.parameters_ref.is_some(),
        };
        Ok((class, complaints.into_warnings()))
    }

    /// Converts a Gateway; fails only if it has no name.
    pub fn gateway(&mut self, object: &original::Gateway) -> Result<Converted<Gateway>, Warning> {
        let (id, spec, mut complaints): (_, GatewaySpec, _) = self.begin(object)?;
        let mut listeners: Vec<Listener> = Vec::with_capacity(spec.listeners.len());
        for (index, listener) in spec.listeners.iter().enumerate() {
            let field = format!("spec.listeners[{index}]");
            if let Some(listener) = listener_of(&field, listener, &mut complaints) {
                if listeners.iter().any(|other| other.name == listener.name) {
                    complaints.add(format!(
                        "{field}: an earlier listener is called {}, too; this one is ignored, give it another name",
                        listener.name
                    ));
                    continue;
                }
                listeners.push(listener);
            }
        }
        let gateway = Gateway {
            id,
            uid: self.text(object.metadata.uid.as_deref().unwrap_or_default()),
            class: self.text(&spec.gateway_class_name),
            addresses: spec.addresses.into(),
            listeners: listeners.into(),
            infrastructure: spec.infrastructure,
        };
        Ok((gateway, complaints.into_warnings()))
    }

    /// Converts a TCPRoute or UDPRoute; fails only if it has no name.
    pub fn route<T: Original + Custom>(&mut self, object: &T) -> Result<Converted<Route>, Warning> {
        let (id, spec, mut complaints): (_, RouteSpec, _) = self.begin(object)?;
        let mut parents = spec.parent_refs;
        for parent in &mut parents {
            parent.complete(GROUP, "Gateway");
        }
        // KUBE: a route has one rule.
        if spec.rules.len() > 1 {
            complaints.add(
                "spec.rules has several rules, of which only the first is used; make a route of each"
                    .to_owned(),
            );
        }
        let rule = spec.rules.into_iter().next().unwrap_or_default();
        let mut backends = rule.backend_refs;
        for backend in &mut backends {
            backend.complete("", "Service");
            let weight = backend.weight.get_or_insert(1);
            if !(0..=MAX_WEIGHT).contains(weight) {
                complaints.add(format!(
                    "backendRef {}: weight {weight} is not between 0 and {MAX_WEIGHT}; the nearest is used, correct it",
                    backend.name
                ));
                *weight = (*weight).clamp(0, MAX_WEIGHT);
            }
        }
        let route = Route {
            id,
            kind: T::KIND,
            parents: parents.into(),
            backends: backends.into(),
        };
        Ok((route, complaints.into_warnings()))
    }

    /// Converts a ReferenceGrant; fails only if it has no name.
    pub fn reference_grant(
        &mut self,
        object: &original::ReferenceGrant,
    ) -> Result<Converted<ReferenceGrant>, Warning> {
        let (id, mut spec, complaints): (_, GrantSpec, _) = self.begin(object)?;
        for reference in spec.from.iter_mut().chain(&mut spec.to) {
            reference.complete("", "");
        }
        let (from, to) = (spec.from.into(), spec.to.into());
        Ok((ReferenceGrant { id, from, to }, complaints.into_warnings()))
    }

    /// Converts a namespace; fails only if it has no name.
    pub fn namespace(&mut self, object: &core::Namespace) -> Result<Converted<Namespace>, Warning> {
        let name = self.object_name(Kind::Namespace, &object.metadata)?;
        let labels = object.metadata.labels.iter().flatten();
        let labels: Labels = labels
            .map(|(key, value)| (self.text(key), self.text(value)))
            .collect();
        Ok((Namespace { name, labels }, Vec::new()))
    }
}
