// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Converts the Gateway API's objects. A part that cannot be read is a warning.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1 as core;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use super::{
    BackendRef, CONTROLLER, From, GROUP, Gateway, GatewayClass, GivenAddress, GrantFrom, GrantTo,
    Identity, Infrastructure, Labels, Listener, Namespace, ParentRef, ReferenceGrant, Route,
    Selector,
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
    addresses: Vec<AddressSpec>,
    listeners: Vec<Value>,
    infrastructure: InfrastructureSpec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AddressSpec {
    #[serde(rename = "type")]
    kind: Option<String>,
    value: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct InfrastructureSpec {
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    parameters_ref: Option<Value>,
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
    kinds: Vec<KindSpec>,
    namespaces: NamespacesSpec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct KindSpec {
    group: Option<String>,
    kind: String,
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
    parent_refs: Vec<RefSpec>,
    rules: Vec<RuleSpec>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RuleSpec {
    backend_refs: Vec<RefSpec>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RefSpec {
    group: Option<String>,
    kind: Option<String>,
    namespace: Option<String>,
    name: String,
    section_name: Option<String>,
    port: Option<i64>,
    weight: Option<i64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct GrantSpec {
    from: Vec<RefSpec>,
    to: Vec<RefSpec>,
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

/// Returns a port number; None if there is no valid one.
fn port(number: Option<i64>) -> Option<u16> {
    number
        .and_then(|number| u16::try_from(number).ok())
        .filter(|number| *number != 0)
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

    fn optional(&mut self, text: Option<&str>) -> Option<Arc<str>> {
        text.filter(|text| !text.is_empty())
            .map(|text| self.text(text))
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
        let addresses = spec.addresses.iter().map(|address| GivenAddress {
            kind: self.text(address.kind.as_deref().unwrap_or("IPAddress")),
            value: self.text(&address.value),
        });
        let addresses = addresses.collect();
        let mut listeners: Vec<Listener> = Vec::with_capacity(spec.listeners.len());
        for (index, listener) in spec.listeners.iter().enumerate() {
            let field = format!("spec.listeners[{index}]");
            if let Some(listener) = self.listener(&field, listener, &mut complaints) {
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
            addresses,
            listeners: listeners.into(),
            infrastructure: Infrastructure {
                labels: spec.infrastructure.labels,
                annotations: spec.infrastructure.annotations,
                has_parameters: spec.infrastructure.parameters_ref.is_some(),
            },
        };
        Ok((gateway, complaints.into_warnings()))
    }

    fn listener(
        &mut self,
        field: &str,
        value: &Value,
        complaints: &mut Complaints,
    ) -> Option<Listener> {
        let spec: ListenerSpec = part(field, value, complaints);
        let Some(port) = port(Some(spec.port)) else {
            complaints.add(format!(
                "{field}: port {} is not between 1 and 65535; this listener is ignored, correct its number",
                spec.port
            ));
            return None;
        };
        let allowed = spec.allowed_routes;
        let kinds = allowed.kinds.iter().map(|kind| {
            let group = kind.group.as_deref().unwrap_or(GROUP);
            (self.text(group), self.text(&kind.kind))
        });
        let kinds = kinds.collect();
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
            name: self.text(&spec.name),
            port,
            protocol: self.text(&spec.protocol),
            kinds,
            from,
        })
    }

    /// Converts a TCPRoute or UDPRoute; fails only if it has no name.
    pub fn route<T: Original + Custom>(&mut self, object: &T) -> Result<Converted<Route>, Warning> {
        let (id, spec, mut complaints): (_, RouteSpec, _) = self.begin(object)?;
        let parents = spec.parent_refs.iter().map(|parent| ParentRef {
            group: self.text(parent.group.as_deref().unwrap_or(GROUP)),
            kind: self.text(parent.kind.as_deref().unwrap_or("Gateway")),
            namespace: self.optional(parent.namespace.as_deref()),
            name: self.text(&parent.name),
            section: self.optional(parent.section_name.as_deref()),
            port: port(parent.port),
        });
        let parents = parents.collect();
        // KUBE: a route has one rule.
        if spec.rules.len() > 1 {
            complaints.add(
                "spec.rules has several rules, of which only the first is used; make a route of each"
                    .to_owned(),
            );
        }
        let rule = spec.rules.into_iter().next().unwrap_or_default();
        let backends = rule.backend_refs.iter().map(|backend| {
            let weight = backend.weight.unwrap_or(1);
            if !(0..=MAX_WEIGHT).contains(&weight) {
                complaints.add(format!(
                    "backendRef {}: weight {weight} is not between 0 and {MAX_WEIGHT}; the nearest is used, correct it",
                    backend.name
                ));
            }
            BackendRef {
                group: self.text(backend.group.as_deref().unwrap_or_default()),
                kind: self.text(backend.kind.as_deref().unwrap_or("Service")),
                namespace: self.optional(backend.namespace.as_deref()),
                name: self.text(&backend.name),
                port: port(backend.port),
                weight: u32::try_from(weight.clamp(0, MAX_WEIGHT)).unwrap_or_default(),
            }
        });
        let backends = backends.collect();
        let route = Route {
            id,
            kind: T::KIND,
            parents,
            backends,
        };
        Ok((route, complaints.into_warnings()))
    }

    /// Converts a ReferenceGrant; fails only if it has no name.
    pub fn reference_grant(
        &mut self,
        object: &original::ReferenceGrant,
    ) -> Result<Converted<ReferenceGrant>, Warning> {
        let (id, spec, complaints): (_, GrantSpec, _) = self.begin(object)?;
        let from = spec.from.iter().map(|from| GrantFrom {
            group: self.text(from.group.as_deref().unwrap_or_default()),
            kind: self.text(from.kind.as_deref().unwrap_or_default()),
            namespace: self.text(from.namespace.as_deref().unwrap_or_default()),
        });
        let from = from.collect();
        let to = spec.to.iter().map(|to| GrantTo {
            group: self.text(to.group.as_deref().unwrap_or_default()),
            kind: self.text(to.kind.as_deref().unwrap_or_default()),
            name: self.optional(Some(&to.name)),
        });
        let to = to.collect();
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
