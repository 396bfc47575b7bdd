// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Plans changed services again and applies the plans. The input is batches of changes; the output
//! is what to do next, and warnings. Many services are applied in several syncs, essential services
//! first, so that a new change does not wait for all of them. Services that could not be applied
//! are tried again later. Driven by `agent`.

mod own;
mod ready;
mod retry;
pub mod turns;

use std::{
    collections::{BTreeSet, HashSet},
    time::Instant,
};

pub use self::ready::ReadyEndpoints;
use self::{own::OwnClusterIps, retry::RetryClock, turns::Turns};
use crate::{
    apply::{Affected, ApplyResult, Failure, Refusal},
    change::{Batch, Change},
    gateway::Write,
    model::{ObjectKey, Service},
    object::ObjectName,
    plan::{HealthUpdate, ServicePlan},
    planner::{
        claims::Claims,
        gateway::{GatewayPlan, plan_gateway},
        plan_service,
    },
    tracker::ClusterState,
    warnings::{Topic, Warnings},
};

/// The receiver of plans, which writes them to the kernel's maps.
pub trait Kernel {
    fn apply(&mut self, changes: &[(ObjectName, ServicePlan)]) -> ApplyResult;
    /// Like `apply`, for services that the maps before the present ones already contained. They may
    /// use the capacity that new services must leave free.
    fn restore(&mut self, changes: &[(ObjectName, ServicePlan)]) -> ApplyResult {
        self.apply(changes)
    }
    fn prune(&mut self, known: &HashSet<ObjectName>) -> ApplyResult;
}

/// The result of [`Syncer::sync`].
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Synced {
    /// The number of services planned.
    pub planned: usize,
    /// The number of map elements written.
    pub written: usize,
    /// Changes of health check node ports.
    pub health: Vec<HealthUpdate>,
    /// True if [`Syncer::failures`] differs from those after the previous sync.
    pub failures_changed: bool,
    /// Objects of the Gateway API, and what is made for them, each with what is to be written about
    /// it from now on; None: nothing. Agents write nothing.
    pub writes: Vec<(ObjectKey, Option<Write>)>,
}

/// Turns the cluster state into applied plans.
#[derive(Debug, Default)]
pub struct Syncer {
    /// The cluster as the changes have made it.
    pub state: ClusterState,
    claims: Claims,
    warnings: Warnings,
    /// Services with warnings about their plan, noted so that the warnings can be removed later.
    warned: HashSet<ObjectName>,
    own: OwnClusterIps,
    /// Services with a health check node port, noted so that the port's removal can be reported.
    health_checked: HashSet<ObjectName>,
    /// Services with a Local policy whose endpoints are all on other nodes, in four sets: for
    /// inside clients by IPv4 and by IPv6, then for outside clients by IPv4 and by IPv6.
    no_local: [HashSet<ObjectName>; 4],
    /// Services and Gateways with weighted endpoints.
    pub weighted: HashSet<ObjectName>,
    /// How many endpoints of each service are ready, for metrics.
    pub ready: ReadyEndpoints,
    turns: Turns,
    /// Services that could not be applied and are to be applied again.
    pub failed: BTreeSet<ObjectName>,
    /// Why services could not be applied; kept until they are applied again.
    pub failures: Vec<Failure>,
    retry: RetryClock,
    /// Whether every object is known. Until then, maps may have services that are still to come.
    pub complete: bool,
    pruned: bool,
}

impl Syncer {
    pub fn new(node_name: &str, warnings: Warnings) -> Self {
        Self {
            state: ClusterState::new(node_name),
            warnings,
            ..Self::default()
        }
    }

    /// Adds the changes and warnings that a source has sent to the cluster state.
    pub fn fold(&mut self, mut batch: Batch) {
        for (topic, warnings) in std::mem::take(&mut batch.warnings) {
            let uid_hash = batch.uid_hash(&topic);
            self.warnings.replace_of(topic, uid_hash, warnings);
        }
        // A removed object may free map entries for a service that did not fit.
        if batch.changes.iter().any(|c| matches!(c, Change::Delete(_))) {
            self.mark_failed();
        }
        for change in batch.changes {
            self.state.fold(change);
        }
        self.complete = batch.complete;
    }

    /// Returns when to call [`Self::retry`]; None if everything is applied.
    pub fn retry_at(&self) -> Option<Instant> {
        self.retry.due()
    }
    /// Lets the next sync try the failed services again. That sync then counts as the attempt that
    /// was due.
    pub fn retry(&mut self) {
        self.retry.begin();
        self.mark_failed();
    }
    /// Plans and applies an unchanged service again, to correct map entries that differ from the
    /// plan. Returns how many elements were written. Does nothing before every object is known,
    /// while services wait, or if the service waits for its next attempt.
    pub fn recheck(&mut self, kernel: &mut impl Kernel, name: &ObjectName) -> usize {
        if !self.pruned || self.is_waiting() || self.failed.contains(name) {
            return 0;
        }
        self.state.mark_dirty([name.clone()]);
        self.sync(kernel).written
    }
    fn mark_failed(&mut self) {
        self.state.mark_dirty(self.failed.iter().cloned());
    }

    /// Makes the next syncs apply every served service again.
    pub fn resync(&mut self) {
        let served = self.state.served();
        self.state.mark_dirty(served);
    }
    /// Returns the services to serve as two ordered lists: those in `held`, which the previous maps
    /// contain, and the others, which may not fit even into larger maps. In the first list,
    /// services whose last change was refused come last, because they need more entries than they
    /// have.
    pub fn names(&self, held: &HashSet<ObjectName>) -> (Vec<ObjectName>, Vec<ObjectName>) {
        let names = turns::ordered(self.state.served());
        let (mut held, others): (Vec<_>, _) =
            names.into_iter().partition(|name| held.contains(name));
        held.sort_by_key(|name| self.failed.contains(name));
        (held, others)
    }
    /// Returns the plans of these services, to fill new maps while syncs still apply to the current
    /// maps.
    pub fn plans(&mut self, names: &[ObjectName]) -> Vec<(ObjectName, ServicePlan)> {
        let mut unused = Synced::default();
        let plans = names.iter().map(|name| self.plan(name, &mut unused));
        plans.collect()
    }
    /// Whether services wait for a later sync, because the last one had too many.
    pub fn is_waiting(&self) -> bool {
        self.turns.is_waiting()
    }
    /// Returns the names of the maps that were too full for a service.
    pub fn full_maps(&self) -> BTreeSet<&'static str> {
        let full = self
            .failures
            .iter()
            .filter_map(|failure| match failure.reason {
                Refusal::Full { map, .. } => Some(map),
                _ => None,
            });
        full.collect()
    }

    /// Whether a sync would plan any service.
    pub fn has_changes(&self) -> bool {
        self.state.has_dirty()
            || self.is_waiting()
            || (self.complete && self.state.gateways.has_unreported())
    }
    /// Returns how many services with a Local policy have endpoints only on other nodes: for inside
    /// clients by IPv4 and by IPv6, then for outside clients by IPv4 and by IPv6.
    pub fn no_local_endpoints(&self) -> [usize; 4] {
        self.no_local.each_ref().map(HashSet::len)
    }
    /// Plans and applies the changed services: all of them, or only the first ones if they are
    /// many; see [`Self::is_waiting`]. Once the source has sent every object, also removes from the
    /// maps the services that it did not send.
    pub fn sync(&mut self, kernel: &mut impl Kernel) -> Synced {
        let mut synced = Synced::default();
        let dirty = self.claim();
        let turn = self.turns.take(dirty);
        let forgot = self.forget_failures_of(&turn);
        let kept = self.failures.len();
        if !turn.is_empty() {
            let changes: Vec<_> = turn
                .iter()
                .map(|name| self.plan(name, &mut synced))
                .collect();
            let result = kernel.apply(&changes);
            synced.planned += changes.len();
            synced.written += result.written;
            self.note_failures(&turn, result.failures);
        }
        if self.complete && !self.pruned && !self.is_waiting() {
            let result = kernel.prune(&self.state.served());
            synced.written += result.written;
            self.failures.extend(result.failures);
            self.pruned = true;
        }
        synced.failures_changed = forgot || self.failures.len() > kept;
        if synced.failures_changed {
            let warnings = self.failures.iter().map(Failure::warning).collect();
            self.warnings.replace(Topic::Apply, warnings);
        }
        self.retry.end(Instant::now(), !self.failed.is_empty());
        if self.complete && !self.is_waiting() {
            self.report(&mut synced);
        }
        synced
    }

    /// Says what has become of the Gateway API's objects. What is not there may still come until
    /// every object is known.
    fn report(&mut self, synced: &mut Synced) {
        for news in self.state.report() {
            let topic = Topic::Gateway(news.object.clone());
            self.warnings
                .replace_of(topic, news.uid_hash, news.warnings);
            synced.writes.push((news.object, news.write));
        }
    }

    /// Decides which service owns which frontend; returns in order every service whose plan may
    /// have changed.
    fn claim(&mut self) -> Vec<ObjectName> {
        let mut dirty = self.state.take_dirty();
        let mut affected = Vec::new();
        for name in &dirty {
            let (service, _) = self.state.service(name);
            affected.extend(self.claims.update(name, service));
        }
        dirty.extend(affected);
        // A stable sort, because it is fast on parts that are already sorted.
        dirty.sort();
        dirty.dedup();
        dirty
    }

    fn plan(&mut self, name: &ObjectName, synced: &mut Synced) -> (ObjectName, ServicePlan) {
        let (service, slices) = self.state.service(name);
        let own_addresses = &self.state.view.own_addresses;
        let own = service.into_iter().flat_map(Service::cluster_ips);
        let own = own.filter(|ip| own_addresses.contains(ip)).collect();
        let uid_hash = service.map_or(0, |service| service.uid_hash);
        self.own.note(name, own);
        let (plan, warnings) = match self.state.gateway(name) {
            Some(served) => {
                let slices = |name: &ObjectName| self.state.service(name).1;
                let planned = plan_gateway(served, slices, &self.state.view, &self.claims);
                let GatewayPlan {
                    plan,
                    warnings,
                    refusals,
                } = planned;
                self.state.gateways.note_refusals(name, refusals);
                (plan, warnings)
            }
            None => service
                .map(|service| plan_service(service, slices, &self.state.view, &self.claims))
                .unwrap_or_default(),
        };
        if keep(&mut self.warned, name, !warnings.is_empty()) {
            let topic = Topic::Plan(name.clone());
            self.warnings.replace_of(topic, uid_hash, warnings);
        }
        self.ready.note(name, &plan);
        let lacks = plan.lacks_local_endpoints();
        let sets = self.no_local.iter_mut().zip(lacks);
        for (set, belongs) in sets.chain([(&mut self.weighted, plan.is_weighted())]) {
            keep(set, name, belongs);
        }
        if keep(&mut self.health_checked, name, plan.health_check.is_some()) {
            synced.health.push((name.clone(), plan.health_check));
        }
        (name.clone(), plan)
    }

    /// Drops the failures of services that are applied again, and keeps the others; true if it
    /// dropped any.
    fn forget_failures_of(&mut self, dirty: &[ObjectName]) -> bool {
        let before = self.failures.len();
        let dirty: HashSet<_> = dirty.iter().collect();
        self.failed.retain(|name| !dirty.contains(name));
        let failed = &self.failed;
        self.failures.retain(|failure| match &failure.affected {
            Affected::Service(name) => failed.contains(name),
            Affected::All => false,
        });
        self.failures.len() < before
    }

    /// Notes which of the services that were applied have to be applied again.
    fn note_failures(&mut self, applied: &[ObjectName], failures: Vec<Failure>) {
        for failure in &failures {
            match &failure.affected {
                Affected::Service(name) => _ = self.failed.insert(name.clone()),
                Affected::All => self.failed.extend(applied.iter().cloned()),
            }
        }
        self.failures.extend(failures);
    }
}

/// Keeps a service in a set if it belongs there; true if it does, or did before.
fn keep(set: &mut HashSet<ObjectName>, name: &ObjectName, belongs: bool) -> bool {
    if belongs {
        set.insert(name.clone());
        return true;
    }
    set.remove(name)
}

#[cfg(test)]
mod tests;
