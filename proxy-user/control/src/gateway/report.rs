// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The status of each object as the specification says, and warnings for what is wrong. Pure
//! functions. KUBE: types and reasons of conditions are those of gateway.networking.k8s.io/v1.

use serde_json::{Value, json};

use super::{
    attach::{Fault, attach, is_of_others, supported_kinds},
    build::Built,
    names,
    resolve::resolve,
    state::Cluster,
};
use crate::{
    model::{
        Gateway, GatewayClass, Kind, Route,
        gateway::{CONTROLLER, GROUP, Reference},
    },
    object::Warning,
};

/// Why frontends of a Gateway belong to something else: the name of the port, and the reason.
pub(super) type Refusals = [(std::sync::Arc<str>, String)];

/// KUBE: the features of the conformance suite that hold, sorted.
const FEATURES: [&str; 4] = ["Gateway", "ReferenceGrant", "TCPRoute", "UDPRoute"];

/// Makes the conditions of one object.
struct Conditions {
    generation: i64,
    made: Vec<Value>,
}

impl Conditions {
    fn of(generation: i64) -> Self {
        Self {
            generation,
            made: Vec::new(),
        }
    }
    fn add(&mut self, kind: &str, holds: bool, reason: &str, message: &str) {
        self.made.push(json!({
            "type": kind,
            "status": if holds { "True" } else { "False" },
            "reason": reason,
            "message": message,
            "observedGeneration": self.generation,
        }));
    }
    fn programmed(&mut self, reason: &str, message: &str) {
        self.add("Programmed", reason == "Programmed", reason, message);
    }
}

fn warning(kind: Kind, name: &impl std::fmt::Display, reason: &str) -> Warning {
    Warning {
        object: format!("{kind} {name}"),
        reason: reason.to_owned(),
    }
}

/// Returns the status of a class of ours.
pub(super) fn of_class(class: &GatewayClass) -> (Value, Vec<Warning>) {
    let mut conditions = Conditions::of(class.id.generation);
    let mut warnings = Vec::new();
    if class.has_parameters {
        let message = "parametersRef is set, and this controller has no parameters; remove it";
        conditions.add("Accepted", false, "InvalidParameters", message);
        warnings.push(warning(Kind::GatewayClass, &class.id.name.name, message));
    } else {
        conditions.add("Accepted", true, "Accepted", "portolan serves its Gateways");
    }
    let features: Vec<_> = FEATURES
        .iter()
        .map(|name| json!({ "name": name }))
        .collect();
    let status = json!({"conditions": conditions.made, "supportedFeatures": features});
    (status, warnings)
}

/// Returns the status of a Gateway of ours. `refusals`: those frontends of its that others have.
pub(super) fn of_gateway(
    gateway: &Gateway,
    built: &Built,
    refusals: &Refusals,
) -> (Value, Vec<Warning>) {
    let (name, addresses) = (&gateway.id.name, &built.addresses);
    let mut warnings = Vec::new();
    let mut warn = |reason: &str| warnings.push(warning(Kind::Gateway, name, reason));
    let mut all = Conditions::of(gateway.id.generation);
    let (mut bad, mut useful, mut others, mut taken) = (0, 0, 0, 0);
    let mut listeners = Vec::new();
    let states = built.faults.iter().zip(&built.routes);
    for (listener, (fault, routes)) in gateway.listeners.iter().zip(states) {
        let mut own = Conditions::of(gateway.id.generation);
        let port = names::short(&listener.name);
        let refusal = refusals.iter().find(|(name, _)| **name == *port);
        let about = |what: &str| format!("listener {}: {what}", listener.name);
        let (kind, asks_for_others) = supported_kinds(listener);
        let kind = kind.filter(|_| *fault != Some(Fault::UnsupportedProtocol));
        let failed = match (fault, refusal) {
            (Some(Fault::UnsupportedProtocol), _) => {
                let message = format!(
                    "protocol {} is not served, only TCP and UDP are; use another GatewayClass for it",
                    listener.protocol
                );
                Some(("UnsupportedProtocol", message))
            }
            (Some(Fault::Conflict), _) => {
                let message =
                    "another listener of this Gateway has the same port; give each its own";
                Some(("ProtocolConflict", message.to_owned()))
            }
            (None, Some((_, reason))) => Some(("PortUnavailable", reason.clone())),
            (None, None) => None,
        };
        if let Some((reason, message)) = &failed {
            bad += 1;
            others +=
                usize::from(*fault == Some(Fault::UnsupportedProtocol) && is_of_others(listener));
            taken += usize::from(refusal.is_some());
            own.add("Accepted", false, reason, message);
            own.programmed("Invalid", message);
            // The planner has a warning about a frontend that belongs to something else.
            if refusal.is_none() {
                warn(&about(message));
            }
        } else {
            useful += 1;
            own.add("Accepted", true, "Accepted", "");
            let (reason, message) = match () {
                () if addresses.refused.is_some() => ("Invalid", "the Gateway is not accepted"),
                () if addresses.said.is_empty() => ("Pending", "the Gateway has no address yet"),
                () => ("Programmed", ""),
            };
            own.programmed(reason, message);
        }
        let conflicts = *fault == Some(Fault::Conflict);
        let (reason, message) = match conflicts {
            true => ("ProtocolConflict", "another listener has the same port"),
            false => ("NoConflicts", ""),
        };
        own.add("Conflicted", conflicts, reason, message);
        if asks_for_others && *fault != Some(Fault::UnsupportedProtocol) {
            let message = "allowedRoutes.kinds has kinds that do not fit the protocol; remove them";
            own.add("ResolvedRefs", false, "InvalidRouteKinds", message);
            warn(&about(message));
        } else {
            own.add("ResolvedRefs", true, "ResolvedRefs", "");
        }
        let kinds: Vec<_> = kind
            .iter()
            .map(|kind| json!({"group": GROUP, "kind": kind.name()}))
            .collect();
        listeners.push(json!({
            "name": listener.name,
            "supportedKinds": kinds,
            "attachedRoutes": routes,
            "conditions": own.made,
        }));
    }
    let unserved = "some listeners are not served; see their conditions";
    let accepted = match &addresses.refused {
        Some((reason, message)) => {
            warn(message);
            all.add("Accepted", false, reason, message);
            false
        }
        None if bad == 0 => {
            all.add("Accepted", true, "Accepted", "");
            true
        }
        // A Gateway that has listeners for proxies of other protocols only is in order as such:
        // it has its address, where connections are refused.
        None => {
            let accepted = useful + others + taken > 0;
            all.add("Accepted", accepted, "ListenersNotValid", unserved);
            accepted
        }
    };
    if !accepted {
        all.programmed("Invalid", "the Gateway is not accepted");
    } else if !addresses.unusable.is_empty() {
        let message = format!("{}; use another address", addresses.unusable.join(", "));
        warn(&message);
        all.programmed("AddressNotUsable", &message);
    } else if addresses.said.is_empty() {
        all.programmed("AddressNotAssigned", &built.unaddressed);
    } else if useful + others == 0 && bad > 0 {
        all.programmed("Invalid", "no listener is served; see their conditions");
    } else {
        all.programmed("Programmed", "");
    }
    let said: Vec<_> = addresses
        .said
        .iter()
        .map(|(kind, value)| json!({"type": kind, "value": &**value}))
        .collect();
    let status = json!({
        "addresses": said,
        "conditions": all.made,
        "listeners": listeners,
    });
    (status, warnings)
}

/// Returns our part of a route's status. `gateway`: the Gateways of ours, translated.
pub(super) fn of_route<'a>(
    route: &Route,
    gateway: impl Fn(&Reference) -> Option<(&'a Gateway, &'a Built)>,
    lookup: &Cluster<'_>,
) -> (Value, Vec<Warning>) {
    let name = &route.id.name;
    let mut warnings = Vec::new();
    let mut warn = |reason: &str| warnings.push(warning(route.kind, name, reason));
    let mut backends = route.backends.iter();
    let unresolved = backends.find_map(|backend| resolve(route, backend, lookup).err());
    let mut parents: Vec<Value> = Vec::new();
    for parent in &route.parents {
        let Some((gateway, built)) = gateway(parent) else {
            continue;
        };
        let labels = lookup.labels(&name.namespace);
        let mut conditions = Conditions::of(route.id.generation);
        match attach(route, parent, gateway, &built.faults, labels) {
            // KUBE: a listener accepts all of its routes, and serves the oldest.
            Ok(used) => {
                let lost = used.into_iter().filter_map(|index| {
                    let serves = built.serving.get(index)?.as_ref()?;
                    let listener = &gateway.listeners.get(index)?.name;
                    (serves != name).then(|| format!(
                        "listener {listener} serves the older {} {serves} in its place; name another listener, or delete one of the two",
                        route.kind
                    ))
                });
                let lost: Vec<_> = lost.collect();
                lost.iter().for_each(|message| warn(message));
                conditions.add("Accepted", true, "Accepted", &lost.join(". "));
            }
            Err((reason, message)) => {
                warn(&message);
                conditions.add("Accepted", false, reason, &message);
            }
        }
        let refs = unresolved.as_ref();
        let (reason, message) = refs.map_or(("ResolvedRefs", ""), |(why, text)| (why, text));
        conditions.add("ResolvedRefs", refs.is_none(), reason, message);
        parents.push(json!({
            "parentRef": parent_ref(parent),
            "controllerName": CONTROLLER,
            "conditions": conditions.made,
        }));
    }
    if let Some((_, message)) = unresolved.filter(|_| !parents.is_empty()) {
        warn(&message);
    }
    (json!({ "parents": parents }), warnings)
}

fn parent_ref(parent: &Reference) -> Value {
    let mut named = json!({
        "group": parent.group, "kind": parent.kind, "namespace": parent.namespace,
        "name": parent.name, "sectionName": parent.section_name, "port": parent.port,
    });
    if let Value::Object(fields) = &mut named {
        fields.retain(|_, value| !value.is_null());
    }
    named
}
