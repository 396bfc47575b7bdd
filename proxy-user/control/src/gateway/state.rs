// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The objects of the Gateway API, and what has become of each Gateway. Changes mark what they
//! concern; `settle` translates the marked Gateways, `report` makes the status of marked objects.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    mem,
    sync::Arc,
};

use super::{
    Write,
    build::{Built, Served, build},
    index::Index,
    names,
    owned::Owned,
    report::{self, Refusals},
};
use crate::{
    model::{
        Gateway, GatewayClass, Kind, Namespace, Object, ObjectKey, ReferenceGrant, Route, Service,
        gateway::{Identity, Labels, status::digest},
    },
    object::{ObjectName, Warning},
    tracker::Services,
};

/// What is to be said about an object.
#[derive(Clone, PartialEq, Debug)]
pub struct News {
    pub object: ObjectKey,
    /// `object::uid_hash` of the original; 0 if it is gone.
    pub uid_hash: u64,
    /// What is to be written; None: nothing.
    pub write: Option<Write>,
    pub warnings: Vec<Warning>,
}

/// The objects of the Gateway API.
#[derive(Debug, Default)]
pub struct Gateways {
    pub(super) classes: HashMap<Arc<str>, Arc<GatewayClass>>,
    pub(super) gateways: HashMap<ObjectName, Arc<Gateway>>,
    routes: HashMap<ObjectKey, Arc<Route>>,
    grants: HashMap<Arc<str>, BTreeMap<Arc<str>, Arc<ReferenceGrant>>>,
    namespaces: HashMap<Arc<str>, Arc<Namespace>>,
    /// The routes that refer to a Gateway.
    routes_of: Index<ObjectName, ObjectKey>,
    /// The routes that refer to a Service.
    users: Index<ObjectName, ObjectKey>,
    /// What is made for Gateways at the API server.
    pub(super) owned: Owned,
    /// The Gateway for which a Service of this name would be made.
    pub(super) makers: HashMap<ObjectName, ObjectName>,
    /// Each Gateway of ours by the name of its plan.
    pub(super) built: HashMap<ObjectName, (ObjectName, Built)>,
    /// Frontends of a plan that others have.
    refusals: HashMap<ObjectName, Vec<(Arc<str>, String)>>,
    /// Gateways to translate again.
    stale: BTreeSet<ObjectName>,
    /// Objects whose status is to be made again.
    unreported: BTreeSet<ObjectKey>,
}

/// The objects that a Gateway or a route refers to.
pub(super) struct Cluster<'a> {
    services: &'a Services,
    gateways: &'a Gateways,
}

impl Cluster<'_> {
    pub(super) fn service(&self, name: &ObjectName) -> Option<&Service> {
        self.services.service(name).map(AsRef::as_ref)
    }
    pub(super) fn grants(&self, namespace: &str) -> impl Iterator<Item = &ReferenceGrant> {
        let grants = self.gateways.grants.get(namespace);
        grants
            .into_iter()
            .flat_map(BTreeMap::values)
            .map(AsRef::as_ref)
    }
    pub(super) fn labels(&self, namespace: &str) -> Option<&Labels> {
        Some(&self.gateways.namespaces.get(namespace)?.labels)
    }
}

pub(super) fn key(kind: Kind, name: &ObjectName) -> ObjectKey {
    let name = name.clone();
    ObjectKey { kind, name }
}

/// Puts an object in place of the one before, or removes it; returns the one before.
fn put<K: std::hash::Hash + Eq, V>(map: &mut HashMap<K, V>, key: K, value: Option<V>) -> Option<V> {
    match value {
        Some(value) => map.insert(key, value),
        None => map.remove(&key),
    }
}

/// Whether an object is the same as before, but for its status and what that has observed.
fn is_unchanged<T: Clone + PartialEq>(
    before: Option<&Arc<T>>,
    now: Option<&Arc<T>>,
    id: impl Fn(&mut T) -> &mut Identity,
) -> bool {
    let without_status = |object: &Arc<T>| {
        let mut object = T::clone(object);
        let id = id(&mut object);
        (id.observed, id.generation) = (0, 0);
        object
    };
    let [before, now] = [before, now].map(|object| object.map(without_status));
    before.is_some() && before == now
}

impl Gateways {
    /// Takes an object of the Gateway API.
    pub fn insert(&mut self, object: Object) {
        let name = object.name().clone();
        match object {
            Object::GatewayClass(class) => self.set_class(&name, Some(class)),
            Object::Gateway(gateway) => self.set_gateway(&name, Some(gateway)),
            Object::Route(route) => self.set_route(key(route.kind, &name), Some(route)),
            Object::ReferenceGrant(grant) => self.set_grant(&name, Some(grant)),
            Object::Namespace(namespace) => self.set_namespace(&name, Some(namespace)),
            Object::Node(_)
            | Object::Service(_)
            | Object::EndpointSlice(_)
            | Object::ServiceCidr(_) => {}
        }
    }

    /// Forgets an object of the Gateway API.
    pub fn remove(&mut self, ObjectKey { kind, name }: ObjectKey) {
        match kind {
            Kind::GatewayClass => self.set_class(&name, None),
            Kind::Gateway => self.set_gateway(&name, None),
            Kind::TcpRoute | Kind::UdpRoute => self.set_route(key(kind, &name), None),
            Kind::ReferenceGrant => self.set_grant(&name, None),
            Kind::Namespace => self.set_namespace(&name, None),
            Kind::Node | Kind::Service | Kind::EndpointSlice | Kind::ServiceCidr => {}
        }
    }

    fn set_class(&mut self, name: &ObjectName, class: Option<Arc<GatewayClass>>) {
        let before = put(&mut self.classes, Arc::clone(&name.name), class.clone());
        self.unreported.insert(key(Kind::GatewayClass, name));
        if is_unchanged(before.as_ref(), class.as_ref(), |class| &mut class.id) {
            return;
        }
        let of_class = |gateway: &&Arc<Gateway>| gateway.class == name.name;
        let gateways = self.gateways.values().filter(of_class);
        let gateways: Vec<_> = gateways.map(|gateway| gateway.id.name.clone()).collect();
        gateways
            .iter()
            .for_each(|gateway| self.mark_gateway(gateway));
    }

    fn set_gateway(&mut self, name: &ObjectName, gateway: Option<Arc<Gateway>>) {
        let maker = gateway.is_some().then(|| name.clone());
        put(&mut self.makers, names::made_for(name), maker);
        let before = put(&mut self.gateways, name.clone(), gateway.clone());
        if is_unchanged(before.as_ref(), gateway.as_ref(), |gateway| &mut gateway.id) {
            self.unreported.insert(key(Kind::Gateway, name));
        } else {
            self.mark_gateway(name);
        }
    }

    /// Marks a Gateway that has changed, and what depends on it.
    fn mark_gateway(&mut self, name: &ObjectName) {
        self.stale.insert(name.clone());
        self.unreported.extend(self.routes_of.of(name).cloned());
    }

    fn set_route(&mut self, route: ObjectKey, now: Option<Arc<Route>>) {
        let before = put(&mut self.routes, route.clone(), now.clone());
        self.unreported.insert(route.clone());
        if is_unchanged(before.as_ref(), now.as_ref(), |route| &mut route.id) {
            return;
        }
        for (version, is_now) in [(&before, false), (&now, true)] {
            for gateway in version.iter().flat_map(|route| parents(route)) {
                self.routes_of.set(&gateway, &route, is_now);
                self.stale.insert(gateway);
            }
            for service in version.iter().flat_map(|route| backends(route)) {
                self.users.set(&service, &route, is_now);
            }
        }
    }

    fn set_grant(&mut self, name: &ObjectName, grant: Option<Arc<ReferenceGrant>>) {
        let ObjectName { namespace, name } = name;
        let grants = self.grants.entry(Arc::clone(namespace)).or_default();
        match grant {
            Some(grant) => _ = grants.insert(Arc::clone(name), grant),
            None => _ = grants.remove(name),
        }
        if grants.is_empty() {
            self.grants.remove(namespace);
        }
        let crosses = |route: &&Arc<Route>| {
            route.id.name.namespace != *namespace
                && backends(route).any(|service| service.namespace == *namespace)
        };
        let routes: Vec<_> = self.routes.values().filter(crosses).cloned().collect();
        self.mark_routes(&routes);
    }

    fn set_namespace(&mut self, name: &ObjectName, namespace: Option<Arc<Namespace>>) {
        let labels = namespace.as_ref().map(|namespace| namespace.labels.clone());
        let before = put(&mut self.namespaces, Arc::clone(&name.name), namespace);
        if before.as_ref().map(|namespace| &namespace.labels) != labels.as_ref() {
            let is_in = |route: &&Arc<Route>| route.id.name.namespace == name.name;
            let routes: Vec<_> = self.routes.values().filter(is_in).cloned().collect();
            self.mark_routes(&routes);
        }
    }

    /// Marks some routes, and the Gateways that they refer to.
    fn mark_routes(&mut self, routes: &[Arc<Route>]) {
        for route in routes {
            self.stale.extend(parents(route));
            self.unreported.insert(key(route.kind, &route.id.name));
        }
    }

    /// Takes in that a Service has changed, is new or gone.
    pub fn note_service(&mut self, name: &ObjectName) {
        if let Some(maker) = self.makers.get(name) {
            self.stale.insert(maker.clone());
            self.unreported.insert(key(Kind::Service, name));
            self.owned.mark(name.clone());
        }
        let users: Vec<_> = self.users.of(name).cloned().collect();
        for user in users {
            let route = self.routes.get(&user);
            self.stale
                .extend(route.iter().flat_map(|route| parents(route)));
            self.unreported.insert(user);
        }
    }

    /// Takes in that endpoints of a Service have changed; returns the plans that have them as
    /// backends, as of the last `settle`.
    pub fn note_endpoints(&mut self, service: &ObjectName) -> BTreeSet<ObjectName> {
        let routes = self
            .users
            .of(service)
            .filter_map(|user| self.routes.get(user));
        let gateways = routes.flat_map(|route| parents(route));
        let plans = gateways.map(|gateway| (names::plan_name(&gateway), gateway));
        let plans = plans.filter(|(plan, _)| self.built.contains_key(plan));
        let (plans, gateways): (BTreeSet<_>, BTreeSet<_>) = plans.unzip();
        for gateway in &gateways {
            self.owned.mark(names::made_for(gateway));
        }
        plans
    }

    /// Whether Gateways must be translated again.
    pub fn is_stale(&self) -> bool {
        !self.stale.is_empty()
    }

    /// Translates the marked Gateways; returns the plans that may have changed.
    pub fn settle(&mut self, services: &Services) -> Vec<ObjectName> {
        let stale = mem::take(&mut self.stale);
        let mut plans = Vec::with_capacity(stale.len());
        for name in stale {
            let plan = names::plan_name(&name);
            let built = self.ours(&name).map(|(gateway, class)| {
                let routes = self.routes_of.of(&name);
                let routes = routes.filter_map(|route| self.routes.get(route));
                let made = services.service(&names::made_for(&name));
                let balancer = self.owned.balancer(made.map(AsRef::as_ref));
                let cluster = self.cluster(services);
                build(
                    gateway,
                    class,
                    routes.map(AsRef::as_ref),
                    balancer,
                    &cluster,
                )
            });
            self.unreported.insert(key(Kind::Gateway, &name));
            let made = names::made_for(&name);
            self.owned.mark(made.clone());
            self.unreported.insert(key(Kind::Service, &made));
            let previous = match built {
                Some(built) => self.built.insert(plan.clone(), (name.clone(), built)),
                None => {
                    self.refusals.remove(&plan);
                    self.built.remove(&plan)
                }
            };
            let versions = [previous.as_ref(), self.built.get(&plan)];
            let [before, now] = versions.map(|version| version.map(|(_, built)| built));
            if before.map(|built| &built.serving) != now.map(|built| &built.serving) {
                self.unreported.extend(self.routes_of.of(&name).cloned());
            }
            if before.map(|built| &built.served) != now.map(|built| &built.served) {
                plans.push(plan);
            }
        }
        plans
    }

    fn cluster<'a>(&'a self, services: &'a Services) -> Cluster<'a> {
        Cluster {
            services,
            gateways: self,
        }
    }

    /// Returns a Gateway, and its class if that is ours.
    fn ours(&self, name: &ObjectName) -> Option<(&Arc<Gateway>, &GatewayClass)> {
        let gateway = self.gateways.get(name)?;
        let class = self.classes.get(&gateway.class)?;
        class.is_ours.then_some((gateway, class))
    }

    /// Returns what to plan for a Gateway's plan; None if it has none.
    pub fn served(&self, plan: &ObjectName) -> Option<&Arc<Served>> {
        Some(&self.built.get(plan)?.1.served)
    }

    /// Returns the names of all plans that serve something.
    pub fn plans(&self) -> impl Iterator<Item = &ObjectName> {
        let all = self.built.iter();
        let served = all.filter(|(_, (_, built))| built.served.service.is_served());
        served.map(|(plan, _)| plan)
    }

    /// Takes in which frontends of a plan belong to something else.
    pub fn note_refusals(&mut self, plan: &ObjectName, refusals: Vec<(Arc<str>, String)>) {
        let Some((gateway, _)) = self.built.get(plan) else {
            return;
        };
        let gateway = key(Kind::Gateway, gateway);
        let before = put(
            &mut self.refusals,
            plan.clone(),
            (!refusals.is_empty()).then(|| refusals.clone()),
        );
        if before.unwrap_or_default() != refusals {
            self.unreported.insert(gateway);
        }
    }

    /// Whether any object is marked for a new status.
    pub fn has_unreported(&self) -> bool {
        !self.unreported.is_empty() || self.owned.is_marked()
    }

    /// Makes the status of every marked object. Call it when every object is known: until then,
    /// what is not there may still come.
    pub fn report(&mut self, services: &Services) -> Vec<News> {
        let unreported = mem::take(&mut self.unreported);
        let news = unreported.into_iter().map(|object| {
            let said = match object.kind {
                Kind::GatewayClass => self.about_class(&object.name),
                Kind::Gateway => self.about_gateway(&object.name),
                Kind::Service => self.about_service(&object.name, services),
                Kind::TcpRoute | Kind::UdpRoute => self.about_route(&object, services),
                _ => None,
            };
            let (uid_hash, write, warnings) = said.unwrap_or_default();
            News {
                object,
                uid_hash,
                write,
                warnings,
            }
        });
        let mut news: Vec<_> = news.collect();
        news.extend(self.about_slices(services));
        news
    }

    fn about_class(&self, name: &ObjectName) -> Option<Said> {
        let class = self.classes.get(&name.name).filter(|class| class.is_ours)?;
        Some(said(Kind::GatewayClass, &class.id, report::of_class(class)))
    }

    fn about_gateway(&self, name: &ObjectName) -> Option<Said> {
        let plan = names::plan_name(name);
        let (_, built) = self.built.get(&plan)?;
        let gateway = self.gateways.get(name)?;
        let refusals: &Refusals = self.refusals.get(&plan).map_or(&[], Vec::as_slice);
        let status = report::of_gateway(gateway, built, refusals);
        Some(said(Kind::Gateway, &gateway.id, status))
    }

    fn about_route(&self, object: &ObjectKey, services: &Services) -> Option<Said> {
        let route = self.routes.get(object)?;
        let namespace = &route.id.name.namespace;
        let gateway = |parent: &crate::model::gateway::Reference| {
            let name = parent.gateway(namespace)?;
            let (_, built) = self.built.get(&names::plan_name(&name))?;
            Some((self.gateways.get(&name)?.as_ref(), built))
        };
        let status = report::of_route(route, gateway, &self.cluster(services));
        Some(said(route.kind, &route.id, status))
    }
}

/// `object::uid_hash`, what is to be written, and warnings.
pub(super) type Said = (u64, Option<Write>, Vec<Warning>);

fn said(kind: Kind, id: &Identity, (status, warnings): (serde_json::Value, Vec<Warning>)) -> Said {
    let differs = digest(kind, &status) != id.observed;
    let write = differs.then_some(Write::Status(status));
    (id.uid_hash, write, warnings)
}

/// Returns the Gateways that a route refers to.
fn parents(route: &Route) -> impl Iterator<Item = ObjectName> {
    let namespace = &route.id.name.namespace;
    let parents = route.parents.iter();
    parents.filter_map(|parent| parent.gateway(namespace))
}

/// Returns the Services that a route refers to.
fn backends(route: &Route) -> impl Iterator<Item = ObjectName> {
    let namespace = &route.id.name.namespace;
    let backends = route.backends.iter();
    backends.filter_map(|backend| backend.service(namespace))
}
