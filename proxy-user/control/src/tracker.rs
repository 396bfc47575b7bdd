// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Applies changes to the cluster state and notes which services must be planned again. Called by
//! `syncer`.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::IpAddr,
    sync::Arc,
};

use ipnet::IpNet;

use crate::{
    change::Change,
    gateway::{Gateways, News, Served, names},
    model::{Conditions, EndpointSlice, Kind, Node, Object, ObjectKey, Service, ServiceCidr},
    object::ObjectName,
    planner::NodeView,
};

/// The cluster as far as this node needs it.
#[derive(Debug, Default)]
pub struct ClusterState {
    node_name: Arc<str>,
    services: Services,
    /// The name of each slice's service, which is in the slice's namespace. A slice may move to
    /// another service.
    slices: HashMap<ObjectName, Arc<str>>,
    node: Option<Arc<Node>>,
    service_cidrs: HashMap<ObjectName, Arc<ServiceCidr>>,
    pub gateways: Gateways,
    /// The addresses that replace the node's InternalIP in families without one.
    fallback_ips: Vec<IpAddr>,
    /// `answer_ping`, `selection` and `client_address` are to be set before the first change.
    pub view: NodeView,
    /// The Service whose endpoints are the agents that take outer headers off; to be set before the
    /// first change.
    pub agents: Option<ObjectName>,
    /// The address ranges by which pods are recognised.
    pod_ranges: Vec<IpNet>,
    /// A service with a cluster IP in the pod ranges, and this IP; None if there is no such
    /// service.
    pub in_pod_ranges: Option<(ObjectName, IpAddr)>,
    /// Services to plan again.
    dirty: BTreeSet<ObjectName>,
    /// The number of services that are served.
    served: usize,
}

/// The cluster's services by name.
#[derive(Debug, Default)]
pub struct Services(HashMap<ObjectName, Entry>);

impl Services {
    pub(crate) fn service(&self, name: &ObjectName) -> Option<&Arc<Service>> {
        self.0.get(name)?.service.as_ref()
    }
    /// Returns the EndpointSlices of a service, ordered by name.
    pub(crate) fn slices(&self, name: &ObjectName) -> &[Arc<EndpointSlice>] {
        self.0.get(name).map_or(&[], |entry| &entry.slices)
    }
}

/// A service and its EndpointSlices, under the service's name; either may arrive first.
#[derive(Debug, Default)]
struct Entry {
    service: Option<Arc<Service>>,
    /// The service's EndpointSlices, ordered by name.
    slices: Vec<Arc<EndpointSlice>>,
}

impl Entry {
    fn is_empty(&self) -> bool {
        self.service.is_none() && self.slices.is_empty()
    }
}

impl ClusterState {
    pub fn new(node_name: &str) -> Self {
        Self {
            node_name: node_name.into(),
            ..Self::default()
        }
    }

    /// Applies one change of a Kubernetes object.
    pub fn fold(&mut self, change: Change) {
        match change {
            Change::Upsert(Object::Service(service)) => {
                let name = service.name.clone();
                self.set_service(name, Some(service));
            }
            Change::Upsert(Object::EndpointSlice(slice)) => {
                let name = slice.name.clone();
                self.set_slice(name, Some(slice));
            }
            Change::Upsert(Object::Node(node)) => {
                if node.name.name == self.node_name {
                    self.node = Some(node);
                    self.refresh_view();
                }
            }
            Change::Upsert(Object::ServiceCidr(ranges)) => {
                self.service_cidrs.insert(ranges.name.clone(), ranges);
            }
            Change::Upsert(object) => self.gateways.insert(object),
            Change::Delete(ObjectKey { kind, name }) => match kind {
                Kind::Service => self.set_service(name, None),
                Kind::EndpointSlice => self.set_slice(name, None),
                Kind::Node if name.name == self.node_name => {
                    self.node = None;
                    self.refresh_view();
                }
                Kind::Node => {}
                Kind::ServiceCidr => _ = self.service_cidrs.remove(&name),
                _ => self.gateways.remove(ObjectKey { kind, name }),
            },
        }
    }

    /// Sets the addresses to use as the node's InternalIPs, for each family without one in the Node
    /// object.
    pub fn set_fallback_ips(&mut self, ips: Vec<IpAddr>) {
        self.fallback_ips = ips;
        self.refresh_view();
    }

    /// Sets the addresses at which processes of this node answer and the broadcast addresses of its
    /// subnets, and marks the services with an address that is new or gone among them.
    pub fn set_own_addresses(&mut self, own: BTreeSet<IpAddr>, broadcasts: BTreeSet<IpAddr>) {
        let before = std::mem::replace(&mut self.view.own_addresses, own);
        let mut changed = &before ^ &self.view.own_addresses;
        let before = std::mem::replace(&mut self.view.broadcasts, broadcasts);
        changed.extend(before.symmetric_difference(&self.view.broadcasts));
        if changed.is_empty() {
            return;
        }
        let has_one = |service: &Arc<Service>| service.addresses().any(|ip| changed.contains(&ip));
        let concerned =
            |(_, entry): &(&ObjectName, &Entry)| entry.service.as_ref().is_some_and(has_one);
        let dirty = self.services.0.iter().filter(concerned);
        self.dirty.extend(dirty.map(|(name, _)| name.clone()));
        self.dirty.extend(self.gateways.plans().cloned());
    }

    /// Sets the address ranges by which pods are recognised, and looks for a cluster IP in them.
    pub fn set_pod_ranges(&mut self, ranges: &[IpNet]) {
        if self.pod_ranges != ranges {
            self.pod_ranges = ranges.to_vec();
            self.look_for_one_in_pod_ranges();
        }
    }
    fn look_for_one_in_pod_ranges(&mut self) {
        let mut services = self.services.0.iter();
        self.in_pod_ranges = services.find_map(|(name, entry)| {
            let ip = ip_within(entry.service.as_deref(), &self.pod_ranges)?;
            Some((name.clone(), ip))
        });
    }

    /// Returns the services that must be planned again, and marks them as no longer dirty.
    pub fn take_dirty(&mut self) -> Vec<ObjectName> {
        self.dirty.extend(self.gateways.settle(&self.services));
        std::mem::take(&mut self.dirty).into_iter().collect()
    }
    pub fn mark_dirty(&mut self, names: impl IntoIterator<Item = ObjectName>) {
        self.dirty.extend(names);
    }

    /// Whether any service must be planned again.
    pub fn has_dirty(&self) -> bool {
        !self.dirty.is_empty() || self.gateways.is_stale()
    }
    /// Returns what to plan for a Gateway by the name of its plan; None for other names.
    pub fn gateway(&self, plan: &ObjectName) -> Option<&Served> {
        self.gateways.served(plan).map(AsRef::as_ref)
    }
    /// Makes the status of the objects that have changed; see [`Gateways::report`].
    pub fn report(&mut self) -> Vec<News> {
        self.gateways.report(&self.services)
    }

    /// Returns a service, None if it is not known yet, and its slices. For a Gateway's plan, it is
    /// the Gateway in the form of a service.
    pub fn service(&self, name: &ObjectName) -> (Option<&Service>, &[Arc<EndpointSlice>]) {
        if names::is_plan(name) {
            return (self.gateway(name).map(|served| &served.service), &[]);
        }
        let service = self.services.service(name).map(AsRef::as_ref);
        (service, self.services.slices(name))
    }
    /// Returns which of these addresses some EndpointSlice lists, ready or not, of any service,
    /// each with whether one of them says that it is on another node.
    pub fn listed(&self, addresses: &BTreeSet<IpAddr>) -> BTreeMap<IpAddr, bool> {
        let mut listed = BTreeMap::new();
        for slice in self.services.0.values().flat_map(|entry| &entry.slices) {
            for (address, conditions, _) in slice.endpoints.all() {
                if addresses.contains(&address) {
                    *listed.entry(address).or_insert(false) |=
                        conditions.has(Conditions::ELSEWHERE);
                }
            }
        }
        listed
    }
    /// Returns the names of all services that are served.
    pub fn served(&self) -> HashSet<ObjectName> {
        self.services
            .0
            .iter()
            .filter(|(_, entry)| entry.service.as_ref().is_some_and(|s| s.is_served()))
            .map(|(name, _)| name)
            .chain(self.gateways.plans())
            .cloned()
            .collect()
    }
    /// Returns the number of services that are served.
    pub fn served_count(&self) -> usize {
        self.served + self.gateways.plans().count()
    }
    /// Returns the Node object of this node; None if it is not known.
    pub fn node(&self) -> Option<&Node> {
        self.node.as_deref()
    }
    /// Returns the known ranges of cluster IPs, sorted and without duplicates.
    pub fn service_ranges(&self) -> BTreeSet<IpNet> {
        let known = self.service_cidrs.values();
        known
            .flat_map(|known| known.ranges.iter().copied())
            .collect()
    }

    fn set_service(&mut self, name: ObjectName, service: Option<Arc<Service>>) {
        let gone = service.is_none();
        let entry = self.services.0.entry(name.clone()).or_default();
        if entry.service != service {
            let is_served = |service: &Option<Arc<Service>>| {
                usize::from(service.as_ref().is_some_and(|service| service.is_served()))
            };
            self.served = self.served + is_served(&service) - is_served(&entry.service);
            let ip = ip_within(service.as_deref(), &self.pod_ranges);
            self.gateways.note_service(&name);
            entry.service = service;
            self.dirty.insert(name.clone());
            let was_named = self.in_pod_ranges.take_if(|(held, _)| *held == name);
            match ip {
                Some(ip) if self.in_pod_ranges.is_none() => {
                    self.in_pod_ranges = Some((name.clone(), ip));
                }
                None if was_named.is_some() => self.look_for_one_in_pod_ranges(),
                _ => {}
            }
        }
        if gone {
            self.forget_if_empty(&name);
        }
    }

    fn set_slice(&mut self, name: ObjectName, slice: Option<Arc<EndpointSlice>>) {
        let made = slice.as_ref().and_then(|slice| slice.made.as_deref());
        self.gateways.note_slice(&name, made);
        let service = slice.as_ref().and_then(|slice| slice.service.clone());
        let held = self.slices.get(&name);
        let leaves = |held: &&Arc<str>| service.as_ref().is_none_or(|to| to.name != **held);
        if let Some(held) = held.filter(leaves) {
            let previous = name.beside(Arc::clone(held));
            if let Some(entry) = self.services.0.get_mut(&previous) {
                entry.slices.retain(|slice| slice.name != name);
                self.dirty.extend(self.gateways.note_endpoints(&previous));
                self.dirty.insert(previous.clone());
            }
            self.look_for_takers(&previous);
            self.slices.remove(&name);
            self.forget_if_empty(&previous);
        }
        let (Some(service), Some(slice)) = (service, slice) else {
            return;
        };
        let entry = self.services.0.entry(service.clone()).or_default();
        match entry.slices.binary_search_by(|known| known.name.cmp(&name)) {
            Ok(at) => match entry.slices.get_mut(at) {
                Some(known) if *known != slice => *known = slice,
                _ => return,
            },
            Err(at) => {
                // Most services have one slice, so no spare capacity is reserved.
                entry.slices.reserve_exact(1);
                entry.slices.insert(at, slice);
                self.slices.insert(name, Arc::clone(&service.name));
            }
        }
        self.dirty.extend(self.gateways.note_endpoints(&service));
        self.look_for_takers(&service);
        self.dirty.insert(service);
    }

    /// Finds out which nodes' agents take outer headers off, if the changed slices are those of the
    /// agents' Service, and marks the services for which it matters.
    fn look_for_takers(&mut self, changed: &ObjectName) {
        if self.agents.as_ref() != Some(changed) {
            return;
        }
        let slices = self.services.slices(changed).iter();
        let agents = slices.flat_map(|slice| slice.endpoints.all());
        let ready = agents.filter(|(_, conditions, _)| conditions.has(Conditions::READY));
        let takers = ready.filter_map(|(.., site)| site?.node.clone()).collect();
        if std::mem::replace(&mut self.view.takers, takers) == self.view.takers {
            return;
        }
        let view = &self.view;
        let keeps = |entry: &Entry| {
            let service = entry.service.as_ref();
            service.is_some_and(|service| view.keeps_clients(service))
        };
        let concerned = self.services.0.iter().filter(|(_, entry)| keeps(entry));
        self.dirty.extend(concerned.map(|(name, _)| name.clone()));
        self.dirty.extend(self.gateways.plans().cloned());
    }

    fn forget_if_empty(&mut self, name: &ObjectName) {
        if self.services.0.get(name).is_some_and(Entry::is_empty) {
            self.services.0.remove(name);
        }
    }

    fn refresh_view(&mut self) {
        let node = self.node.as_deref();
        let v4 = node.and_then(|node| node.internal_v4).map(IpAddr::V4);
        let v6 = node.and_then(|node| node.internal_v6).map(IpAddr::V6);
        let own = || v4.into_iter().chain(v6);
        let lacks = |fallback: &IpAddr| own().all(|ip| ip.is_ipv4() != fallback.is_ipv4());
        let fallbacks = self.fallback_ips.iter().copied().filter(lacks);
        let internal_ips = own().chain(fallbacks).collect();
        let zone = node.and_then(|node| node.zone.clone());
        let ips =
            std::mem::replace(&mut self.view.internal_ips, internal_ips) != self.view.internal_ips;
        let zone = std::mem::replace(&mut self.view.zone, zone) != self.view.zone;
        if !zone && !ips {
            return;
        }
        let depends = |entry: &Entry| {
            let ranges = |service: &Arc<Service>| !service.source_ranges.ranges.is_empty();
            let endpoints = || entry.slices.iter().flat_map(|slice| slice.endpoints.all());
            (ips && entry.service.as_ref().is_some_and(ranges))
                || (zone
                    && endpoints()
                        .any(|(.., site)| site.is_some_and(|site| !site.hinted_zones.is_empty())))
        };
        let dependent = self.services.0.iter().filter(|(_, entry)| depends(entry));
        self.dirty.extend(dependent.map(|(name, _)| name.clone()));
        self.dirty.extend(self.gateways.plans().cloned());
    }
}

/// Returns the service's first cluster IP that is in one of the ranges; None if no range has one.
fn ip_within(service: Option<&Service>, ranges: &[IpNet]) -> Option<IpAddr> {
    let mut ips = service?.cluster_ips();
    ips.find(|ip| ranges.iter().any(|range| range.contains(ip)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Cluster, endpoint, service, slice};

    #[test]
    fn endpoints_of_any_slice_are_listed_whatever_their_conditions() {
        let gone = ", conditions: {ready: false, serving: false, terminating: true}";
        let cluster = Cluster::new(
            &(service("cart", "172.30.0.1", "")
                + &slice("cart-1", "cart", &[endpoint(1, "node-a", "")])
                + &slice("till-1", "till", &[endpoint(2, "node-b", gone)])),
        );
        let address = |last| IpAddr::from([10, 40, 1, last]);
        let asked = [1, 2, 3].map(address).into();
        let listed = [(address(1), false), (address(2), true)];
        assert_eq!(cluster.state.listed(&asked), listed.into());
    }
}
