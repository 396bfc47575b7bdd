// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is made at the API server for Gateways without addresses: a Service of type LoadBalancer,
//! and its EndpointSlices. Says what is to become of each, by what the watch shows of it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    mem,
    sync::Arc,
};

use serde_json::Value;

use super::{
    Write,
    addresses::Balancer,
    index::Index,
    made::{self, Wanted, is_right},
    names, slices,
    state::{Gateways, News, Said, key},
};
use crate::{
    model::{Kind, MadeSlice, Role, Service},
    object::{ObjectName, Warning},
    tracker::Services,
};

/// What is made for Gateways.
#[derive(Debug, Default)]
pub(super) struct Owned {
    /// Whether anything is made.
    is_allowed: bool,
    /// What was last to be applied to each Service: with something else, what it has too much goes.
    asked: HashMap<ObjectName, Value>,
    /// The slices that there are, each with its Service, as they are.
    slices: BTreeMap<ObjectName, (ObjectName, Arc<Value>)>,
    /// The slices of each Service that was made.
    slices_of: Index<ObjectName, ObjectName>,
    /// The slices about which something is to be written, by their Service.
    unwritten: HashMap<ObjectName, BTreeSet<ObjectName>>,
    /// Services, made or not yet, whose slices are to be looked at again.
    marked: BTreeSet<ObjectName>,
}

impl Owned {
    /// Lets the slices of a Service that is made for a Gateway be looked at again.
    pub(super) fn mark(&mut self, service: ObjectName) {
        if self.is_allowed {
            self.marked.insert(service);
        }
    }

    pub(super) fn is_marked(&self) -> bool {
        !self.marked.is_empty()
    }

    /// Returns what a Gateway has of its load balancer. `found` is the Service of that name.
    pub(super) fn balancer<'a>(&self, found: Option<&'a Service>) -> Balancer<'a> {
        match found {
            Some(service) if matches!(service.role, Role::Made(_)) => Balancer::There(service),
            _ if !self.is_allowed => Balancer::NotMade,
            Some(_) => Balancer::NameTaken,
            None => Balancer::Awaited,
        }
    }
}

impl Gateways {
    /// Sets whether Services are made for Gateways without addresses.
    pub fn set_services(&mut self, are_made: bool) {
        self.owned.is_allowed = are_made;
    }

    /// Takes in a slice as it is now; None if it was not made for a Gateway, or is gone.
    pub fn note_slice(&mut self, name: &ObjectName, now: Option<&MadeSlice>) {
        let owned = &mut self.owned;
        if let Some((service, _)) = owned.slices.remove(name) {
            owned.slices_of.set(&service, name, false);
            owned.mark(service);
        }
        if let Some(made) = now {
            let service = name.beside(Arc::clone(&made.service));
            owned.slices_of.set(&service, name, true);
            let slice = (service.clone(), Arc::clone(&made.object));
            owned.slices.insert(name.clone(), slice);
            owned.mark(service);
        }
    }

    /// Returns what is to become of the Service of this name, and for whom it is or would be made.
    fn wanted(&self, service: &ObjectName) -> Wanted {
        let maker = self.makers.get(service);
        let Some(gateway) = maker.and_then(|maker| self.gateways.get(maker)) else {
            // It may only not be known. KUBE: what was made for it has it as its owner, and goes
            // with it.
            return Wanted::Kept;
        };
        match self.built.get(&names::plan_name(&gateway.id.name)) {
            Some((_, built)) => made::wanted(gateway, built),
            None => match self.classes.get(&gateway.class) {
                Some(class) if !class.is_ours => Wanted::Gone,
                // A class may be deleted and applied again.
                _ => Wanted::Kept,
            },
        }
    }

    /// Says what is to become of a Service that was made for a Gateway, or is to be.
    pub(super) fn about_service(&mut self, name: &ObjectName, services: &Services) -> Option<Said> {
        if !self.owned.is_allowed {
            return None;
        }
        let found = services.service(name);
        let write = match (self.wanted(name), found.map(|found| &found.role)) {
            (Wanted::Applied(wanted), Some(Role::Made(made)))
                if self.owned.asked.get(name) == Some(&wanted)
                    && is_right(&made.object, &wanted) =>
            {
                None
            }
            (Wanted::Applied(wanted), None | Some(Role::Made(_))) => {
                self.owned.asked.insert(name.clone(), wanted.clone());
                Some(Write::Apply(wanted))
            }
            // A Service of users has this name.
            (Wanted::Applied(_), Some(_)) => {
                let gateway = self.makers.get(name).map(ToString::to_string);
                let reason = format!(
                    "Gateway {} wants a Service of this name for its addresses; rename this Service, or give the Gateway addresses",
                    gateway.unwrap_or_default()
                );
                let object = format!("Service {name}");
                let uid_hash = found.map_or(0, |found| found.uid_hash);
                return Some((uid_hash, None, vec![Warning { object, reason }]));
            }
            (Wanted::Gone, Some(Role::Made(_))) => Some(Write::Delete),
            (Wanted::Kept | Wanted::Gone, _) => {
                self.owned.asked.remove(name);
                None
            }
        };
        Some((found.map_or(0, |found| found.uid_hash), write, Vec::new()))
    }

    /// Says what is to become of the slices of the marked Services.
    pub(super) fn about_slices(&mut self, services: &Services) -> Vec<News> {
        let mut all = Vec::new();
        let marked = mem::take(&mut self.owned.marked);
        for service in marked.into_iter().filter(|_| self.owned.is_allowed) {
            let mut unwritten = BTreeSet::new();
            for (name, write) in self.slice_writes(&service, services) {
                if write.is_some() {
                    unwritten.insert(name.clone());
                }
                all.push(News {
                    object: key(Kind::EndpointSlice, &name),
                    uid_hash: 0,
                    write,
                    warnings: Vec::new(),
                });
            }
            if unwritten.is_empty() {
                self.owned.unwritten.remove(&service);
            } else {
                self.owned.unwritten.insert(service, unwritten);
            }
        }
        all
    }

    /// Returns every slice that a Service has, is to have, or was to have, with what is to be
    /// written about it.
    fn slice_writes(
        &self,
        service: &ObjectName,
        services: &Services,
    ) -> Vec<(ObjectName, Option<Write>)> {
        let owned = &self.owned;
        let there = || owned.slices_of.of(service);
        let before = owned.unwritten.get(service).into_iter().flatten();
        let mut writes: BTreeMap<_, _> = before
            .chain(there())
            .map(|name| (name.clone(), None))
            .collect();
        let is_made = services
            .service(service)
            .is_some_and(|found| matches!(found.role, Role::Made(_)));
        let gateway = self.makers.get(service);
        let gateway = gateway.and_then(|name| self.gateways.get(name));
        let built = gateway.and_then(|gateway| self.built.get(&names::plan_name(&gateway.id.name)));
        match (self.wanted(service), gateway.zip(built)) {
            // It stays as it is while the Gateway or its class is not known.
            (Wanted::Kept, None) => {}
            (Wanted::Applied(..), Some((gateway, (_, built)))) if is_made => {
                let wanted = slices::wanted(service, &built.served, |name| services.slices(name));
                let obsolete = there().filter(|name| !wanted.contains_key(&*name.name));
                writes.extend(obsolete.map(|name| (name.clone(), Some(Write::Delete))));
                for (name, slice) in wanted {
                    let name = service.beside(name);
                    let object = slice.object(&name, service, gateway);
                    let found = owned.slices.get(&name);
                    let is_wrong = found.is_none_or(|(_, found)| !is_right(found, &object));
                    writes.insert(name, is_wrong.then_some(Write::Apply(object)));
                }
            }
            _ => writes.extend(there().map(|name| (name.clone(), Some(Write::Delete)))),
        }
        writes.into_iter().collect()
    }
}
