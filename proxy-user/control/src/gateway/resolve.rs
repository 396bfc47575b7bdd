// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a route's references to backends lead to. A pure function.

use std::sync::Arc;

use proxy_common::Protocol;

use super::{attach::Refused, state::Cluster};
use crate::{
    model::{Kind, ReferenceGrant, Route, gateway::Reference},
    object::ObjectName,
};

/// A backend of a route: a port of a Service, with its share of new connections.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Share {
    pub service: ObjectName,
    /// The name of the Service's port, by which its slices are read.
    pub port_name: Arc<str>,
    pub weight: u32,
}

/// Returns the transport protocol of a kind of routes.
pub(super) fn protocol(kind: Kind) -> Protocol {
    if kind == Kind::UdpRoute {
        Protocol::UDP
    } else {
        Protocol::TCP
    }
}

/// Resolves one of a route's references.
pub(super) fn resolve(
    route: &Route,
    backend: &Reference,
    lookup: &Cluster<'_>,
) -> Result<Share, Refused> {
    let namespace = &route.id.name.namespace;
    let Some(name) = backend.service(namespace) else {
        let [group, kind] =
            [&backend.group, &backend.kind].map(|text| text.as_deref().unwrap_or_default());
        let message = format!(
            "a backend can be a Service, not a {kind} of the group {group:?}; correct backendRefs"
        );
        return Err(("InvalidKind", message));
    };
    let kind = route.kind;
    let permits = |grant: &ReferenceGrant| grant.permits(kind, namespace, &name.name);
    if name.namespace != *namespace && !lookup.grants(&name.namespace).any(permits) {
        let message = format!(
            "no ReferenceGrant in {} lets a {kind} of {namespace} refer to Service {}; create one there",
            name.namespace, name.name
        );
        return Err(("RefNotPermitted", message));
    }
    let service = lookup.service(&name);
    let Some(service) = service.filter(|service| service.is_served()) else {
        let message = format!(
            "there is no Service {name} with a cluster IP; create it, or correct backendRefs"
        );
        return Err(("BackendNotFound", message));
    };
    let Some(number) = backend.port else {
        let message = format!(
            "backendRef {} names no port of the Service; set port",
            backend.name
        );
        return Err(("BackendNotFound", message));
    };
    let protocol = protocol(kind);
    let all = service.ports.iter();
    let ports = || all.clone().filter(|port| port.port.host() == number);
    if let Some(port) = ports().find(|port| port.protocol == protocol) {
        return Ok(Share {
            service: name,
            port_name: Arc::clone(&port.name),
            weight: backend.weight(),
        });
    }
    let Some(port) = ports().next() else {
        let message =
            format!("Service {name} has no port {number}; correct backendRefs or the Service");
        return Err(("BackendNotFound", message));
    };
    let message = format!(
        "port {number} of Service {name} is {}, which a {kind} does not carry; correct backendRefs",
        port.protocol.name()
    );
    Err(("UnsupportedProtocol", message))
}
