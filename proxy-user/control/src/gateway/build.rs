// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Translates one Gateway with its routes into what the planner plans: a service, and the backends
//! of each port. A pure function of the objects.

use std::{collections::BTreeMap, sync::Arc};

use proxy_common::{Port, Protocol};

use super::{
    addresses::{Addressed, Addresses, Balancer},
    attach::{Fault, attach, faults, is_of_others},
    names,
    resolve::{Share, protocol, resolve},
    state::Cluster,
};
use crate::{
    model::{Gateway, GatewayClass, Role, Route, Service, ServicePort},
    object::ObjectName,
};

/// What the planner needs of a Gateway.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Served {
    /// The Gateway in the form of a service.
    pub service: Service,
    /// The backends of each of its ports.
    pub ports: Box<[PortBackends]>,
}

/// The backends of one listener.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PortBackends {
    pub shares: Box<[Share]>,
    /// The sum of the weights of backends that do not exist: their share is refused.
    pub refused: u32,
}

/// A Gateway of ours, translated.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Built {
    pub(super) served: Arc<Served>,
    /// Why each listener is not served.
    pub(super) faults: Box<[Option<Fault>]>,
    /// How many routes each listener has.
    pub(super) routes: Box<[usize]>,
    /// The one of them that each listener serves.
    pub(super) serving: Box<[Option<ObjectName>]>,
    pub(super) addresses: Addresses,
    /// Why it has no address, if it has none.
    pub(super) unaddressed: String,
}

/// Translates a Gateway of a class of ours. `routes` are those that refer to it.
pub(super) fn build<'a>(
    gateway: &Gateway,
    class: &GatewayClass,
    routes: impl Iterator<Item = &'a Route>,
    balancer: Balancer<'_>,
    lookup: &Cluster<'_>,
) -> Built {
    let made = balancer.there();
    let faults = faults(gateway);
    let mut counts = vec![0; faults.len()];
    let mut first: BTreeMap<usize, &Route> = BTreeMap::new();
    for route in routes {
        for index in attached(gateway, &faults, route, lookup) {
            if let Some(count) = counts.get_mut(index) {
                *count += 1;
            }
            // KUBE: a listener serves the oldest of its routes.
            let age = |route: &Route| (route.id.created, route.id.name.to_string());
            let one = first.entry(index).or_insert(route);
            if age(route) < age(one) {
                *one = route;
            }
        }
    }
    let addresses = Addresses::of(gateway, class, made);
    let (mut ports, mut backends) = (Vec::new(), Vec::new());
    for ((index, listener), fault) in gateway.listeners.iter().enumerate().zip(&faults) {
        // Connections to listeners of other protocols are refused, so the address says what it
        // does not serve.
        let carried = match (fault, listener.route_kind()) {
            (None, Some(kind)) => protocol(kind),
            (Some(Fault::UnsupportedProtocol), None) if is_of_others(listener) => Protocol::TCP,
            _ => continue,
        };
        let port = Port::from_host(listener.port);
        let same = |other: &&ServicePort| (other.port, other.protocol) == (port, carried);
        if ports.iter().any(|port| same(&port)) {
            continue;
        }
        let known = made.and_then(|made| made.ports.iter().find(same));
        ports.push(ServicePort {
            name: names::short(&listener.name).into(),
            protocol: carried,
            port,
            node_port: known.map_or(Port::ANY, |port| port.node_port),
        });
        let route = first.get(&index).filter(|_| fault.is_none());
        backends.push(route.map_or_else(PortBackends::default, |route| backends_of(route, lookup)));
    }
    if addresses.refused.is_some() {
        (ports, backends) = (Vec::new(), Vec::new());
    }
    let base = made.filter(|_| addresses.from == Addressed::ByService);
    let service = Service {
        name: names::plan_name(&gateway.id.name),
        uid_hash: gateway.id.uid_hash,
        created: gateway.id.created,
        load_balancer_ips: addresses.ips.as_slice().into(),
        ports: ports.into(),
        role: Role::Gateway,
        ..base.cloned().unwrap_or_default()
    };
    Built {
        served: Arc::new(Served {
            service,
            ports: backends.into(),
        }),
        serving: (0..faults.len())
            .map(|index| first.get(&index).map(|route| route.id.name.clone()))
            .collect(),
        faults: faults.into(),
        routes: counts.into(),
        addresses,
        unaddressed: balancer.unaddressed(&gateway.id.name),
    }
}

/// Returns the listeners of a Gateway that a route may use, each once.
fn attached(
    gateway: &Gateway,
    faults: &[Option<Fault>],
    route: &Route,
    lookup: &Cluster<'_>,
) -> Vec<usize> {
    let namespace = &route.id.name.namespace;
    let meant = route.parents.iter();
    let meant = meant.filter(|parent| parent.gateway(namespace).as_ref() == Some(&gateway.id.name));
    let labels = lookup.labels(namespace);
    let listeners = meant.filter_map(|parent| attach(route, parent, gateway, faults, labels).ok());
    let mut all: Vec<_> = listeners.flatten().collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn backends_of(route: &Route, lookup: &Cluster<'_>) -> PortBackends {
    let mut all = PortBackends::default();
    let mut shares = Vec::new();
    for backend in &route.backends {
        match resolve(route, backend, lookup) {
            Ok(share) => shares.push(share),
            Err(_) => all.refused = all.refused.saturating_add(backend.weight()),
        }
    }
    all.shares = shares.into();
    all
}
