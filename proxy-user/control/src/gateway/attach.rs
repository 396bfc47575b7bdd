// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which listeners of a Gateway can be served, and which a route may use. Pure functions.

use crate::model::{
    Gateway, Kind, Route,
    gateway::{AllowedKind, From, GROUP, Labels, Listener, Reference},
};

/// Why a listener is not served, whatever else the cluster has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    UnsupportedProtocol,
    /// Another listener of the Gateway has its port, with a protocol that cannot share it.
    Conflict,
}

/// Returns why each listener of a Gateway is not served; None for those that are.
pub(super) fn faults(gateway: &Gateway) -> Vec<Option<Fault>> {
    let listeners = &gateway.listeners;
    // Listeners of other proxies share a port by host names, which says nothing about TCP and UDP.
    let is_ours = |listener: &Listener| listener.route_kind().is_some();
    let clash = |one: &Listener, other: &Listener| {
        one.name != other.name
            && one.port == other.port
            && over(one) == over(other)
            && (is_ours(one) || is_ours(other))
    };
    let fault = |listener: &Listener| {
        if listeners.iter().any(|other| clash(listener, other)) {
            Some(Fault::Conflict)
        } else if listener.route_kind().is_none() {
            Some(Fault::UnsupportedProtocol)
        } else {
            None
        }
    };
    listeners.iter().map(fault).collect()
}

/// Returns the transport below a listener's protocol, by which listeners share a port or not.
fn over(listener: &Listener) -> &str {
    if is_of_others(listener) {
        "TCP"
    } else {
        &listener.protocol
    }
}

/// Whether the protocol is one of the Gateway API's own that this controller leaves to others.
pub(super) fn is_of_others(listener: &Listener) -> bool {
    matches!(listener.protocol.as_str(), "HTTP" | "HTTPS" | "TLS")
}

/// Returns the kinds of routes that may use a listener, and whether it asks for others as well.
pub(super) fn supported_kinds(listener: &Listener) -> (Option<Kind>, bool) {
    let fits = listener.route_kind();
    let is_ours = |asked: &AllowedKind| {
        let is_group = asked.group.as_ref().is_none_or(|group| group == GROUP);
        is_group && fits.is_some_and(|fits| fits.name() == asked.kind)
    };
    let others = !listener.kinds.iter().all(is_ours);
    let ours = listener.kinds.is_empty() || listener.kinds.iter().any(is_ours);
    (fits.filter(|_| ours), others)
}

/// KUBE: why something is refused: the reason of its condition, and an explanation.
pub(super) type Refused = (&'static str, String);

/// Returns the indices of the listeners of a Gateway that a route may use by one of its parent
/// references. `faults`: why listeners are not served; `labels` are those of the route's namespace.
pub(super) fn attach(
    route: &Route,
    parent: &Reference,
    gateway: &Gateway,
    faults: &[Option<Fault>],
    labels: Option<&Labels>,
) -> Result<Vec<usize>, Refused> {
    let name = &gateway.id.name;
    let meant = |listener: &Listener| {
        let section = parent.section_name.as_ref();
        section.is_none_or(|section| *section == listener.name)
            && parent.port.is_none_or(|port| port == listener.port)
    };
    let named = gateway.listeners.iter().zip(faults).enumerate();
    let named: Vec<_> = named.filter(|(_, (listener, _))| meant(listener)).collect();
    if named.is_empty() {
        let message = format!(
            "Gateway {name} has no listener of this name and port; correct sectionName or port"
        );
        return Err(("NoMatchingParent", message));
    }
    let kind = route.kind;
    let fitting = named.into_iter().filter(|(_, (listener, fault))| {
        **fault != Some(Fault::UnsupportedProtocol) && supported_kinds(listener).0 == Some(kind)
    });
    let fitting: Vec<_> = fitting.collect();
    if fitting.is_empty() {
        let message = format!(
            "no listener that it names takes a {kind}; name one with the protocol of the route, or add the kind to its allowedRoutes"
        );
        return Err(("NotAllowedByListeners", message));
    }
    let allowed = fitting
        .into_iter()
        .filter(|(_, (listener, _))| match &listener.from {
            From::All => true,
            From::Same => route.id.name.namespace == gateway.id.name.namespace,
            From::Matching(selector) => labels.is_some_and(|labels| selector.matches(labels)),
            From::Nowhere => false,
        });
    let allowed: Vec<_> = allowed.map(|(index, _)| index).collect();
    if allowed.is_empty() {
        let message = format!(
            "no listener that it names takes routes of the namespace {}; allow it in allowedRoutes.namespaces of Gateway {name}",
            route.id.name.namespace
        );
        return Err(("NotAllowedByListeners", message));
    }
    Ok(allowed)
}
