// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a route's references to backends lead to. A pure function.

use std::sync::Arc;

use proxy_common::Protocol;

use super::attach::Refused;
use crate::{
    model::{Kind, ReferenceGrant, Route, Service, gateway::Reference},
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

/// Resolves one of a route's references. `service`: the Service that it names, None if there is
/// none; `grants`: those of the Service's namespace.
pub(super) fn resolve<'a>(
    route: &Route,
    backend: &Reference,
    service: Option<&Service>,
    mut grants: impl Iterator<Item = &'a ReferenceGrant>,
) -> Result<Share, Refused> {
    let no = |reason, message| Err((reason, message));
    let namespace = &route.id.name.namespace;
    let Some(name) = backend.service(namespace) else {
        let [group, kind] =
            [&backend.group, &backend.kind].map(|text| text.as_deref().unwrap_or_default());
        return no(
            "InvalidKind",
            format!(
                "a backend can be a Service, not a {kind} of the group {group:?}; correct backendRefs"
            ),
        );
    };
    let kind = route.kind;
    if name.namespace != *namespace
        && !grants.any(|grant| grant.permits(kind, namespace, &name.name))
    {
        return no(
            "RefNotPermitted",
            format!(
                "no ReferenceGrant in {} lets a {kind} of {namespace} refer to Service {}; create one there",
                name.namespace, name.name
            ),
        );
    }
    let Some(service) = service.filter(|service| service.is_served()) else {
        return no(
            "BackendNotFound",
            format!(
                "there is no Service {name} with a cluster IP; create it, or correct backendRefs"
            ),
        );
    };
    let Some(number) = backend.port else {
        return no(
            "BackendNotFound",
            format!(
                "backendRef {} names no port of the Service; set port",
                backend.name
            ),
        );
    };
    let protocol = protocol(kind);
    let ports = || {
        service
            .ports
            .iter()
            .filter(|port| port.port.host() == number)
    };
    if let Some(port) = ports().find(|port| port.protocol == protocol) {
        return Ok(Share {
            service: name,
            port_name: Arc::clone(&port.name),
            weight: backend.weight(),
        });
    }
    match ports().next() {
        Some(port) => no(
            "UnsupportedProtocol",
            format!(
                "port {number} of Service {name} is {}, which a {kind} does not carry; correct backendRefs",
                port.protocol.name()
            ),
        ),
        None => no(
            "BackendNotFound",
            format!("Service {name} has no port {number}; correct backendRefs or the Service"),
        ),
    }
}
