// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Plans changed services again and applies the plans. The input is batches of changes; the output
//! is what to do next, and warnings. Many services are applied in several syncs, essential services
//! first, so that a new change does not wait for all of them. Services that could not be applied
//! are tried again later. Driven by `agent`.

mod own;
mod retry;
pub mod turns;

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    net::IpAddr,
    sync::Arc,
    time::Instant,
};

use ipnet::IpNet;

use self::{own::OwnClusterIps, retry::RetryClock, turns::Turns};
use crate::{
    apply::{Affected, ApplyResult, Failure},
    change::{Batch, Change},
    gateway::Writer,
    model::{Node, Selection},
    object::{ObjectName, Warning},
    plan::{HealthUpdate, ServicePlan},
    planner::{
        NodeView,
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
    /// True if [`Syncer::failures`] differ from those after the previous sync.
    pub failures_changed: bool,
}

/// Turns the cluster state into applied plans.
#[derive(Debug)]
pub struct Syncer {
    state: ClusterState,
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
    weighted: HashSet<ObjectName>,
    turns: Turns,
    /// Services that could not be applied and are to be applied again.
    failed: BTreeSet<ObjectName>,
    /// Why services could not be applied; kept until they are applied again.
    failures: Vec<Failure>,
    retry: RetryClock,
    complete: bool,
    pruned: bool,
    /// Takes the status of the Gateway API's objects; None without an API server.
    writer: Option<Arc<dyn Writer>>,
}

impl Syncer {
    pub fn new(node_name: &str, warnings: Warnings) -> Self {
        Self {
            state: ClusterState::new(node_name),
            claims: Claims::default(),
            warnings,
            warned: HashSet::new(),
            own: OwnClusterIps::default(),
            health_checked: HashSet::new(),
            no_local: Default::default(),
            weighted: HashSet::new(),
            turns: Turns::default(),
            failed: BTreeSet::new(),
            failures: Vec::new(),
            retry: RetryClock::default(),
            complete: false,
            pruned: false,
            writer: None,
        }
    }

    /// Sets who writes the status of the Gateway API's objects.
    #[must_use]
    pub fn with_writer(mut self, writer: Option<Arc<dyn Writer>>) -> Self {
        self.writer = writer;
        self
    }

    /// Sets whether external and load balancer IPs get frontends that answer echo requests (pings).
    #[must_use]
    pub fn with_answer_ping(mut self, answer: bool) -> Self {
        self.state.set_answer_ping(answer);
        self
    }

    /// Sets whether Services of type LoadBalancer are made for Gateways without addresses.
    #[must_use]
    pub fn with_gateway_services(mut self, are_made: bool) -> Self {
        self.state.set_gateway_services(are_made);
        self
    }

    /// Sets how a new flow gets its backend, for services whose annotation does not say it.
    #[must_use]
    pub fn with_selection(mut self, selection: Selection) -> Self {
        self.state.set_selection(selection);
        self
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
    /// Returns how many services could not be applied.
    pub fn failed_count(&self) -> usize {
        self.failed.len()
    }
    /// Whether every object is known. Until then, maps may have services that are still to come.
    pub fn is_complete(&self) -> bool {
        self.complete
    }
    /// Returns what could not be applied, and why.
    pub fn failures(&self) -> &[Failure] {
        &self.failures
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
    /// Returns how many services have to be served.
    pub fn known(&self) -> usize {
        self.state.served_count()
    }
    /// Returns the names of the maps that were too full for a service.
    pub fn full_maps(&self) -> BTreeSet<&'static str> {
        let full = self
            .failures
            .iter()
            .filter_map(|failure| failure.reason.full_map());
        full.collect()
    }

    pub fn view(&self) -> &NodeView {
        self.state.view()
    }
    pub fn node(&self) -> Option<&Node> {
        self.state.node().map(AsRef::as_ref)
    }
    /// Whether a sync would plan any service.
    pub fn has_changes(&self) -> bool {
        self.state.has_dirty()
            || self.is_waiting()
            || (self.complete && self.state.has_unreported())
    }
    /// Returns the known ranges of cluster IPs; see [`ClusterState::service_ranges`].
    pub fn service_ranges(&self) -> BTreeSet<IpNet> {
        self.state.service_ranges()
    }
    /// Sets addresses that replace missing InternalIPs; see [`ClusterState::set_fallback_ips`].
    pub fn set_fallback_ips(&mut self, ips: Vec<IpAddr>) {
        self.state.set_fallback_ips(ips);
    }

    /// Sets the addresses at which the node answers, and its subnets' broadcast addresses; see
    /// [`ClusterState::set_own_addresses`].
    pub fn set_own_addresses(&mut self, own: BTreeSet<IpAddr>, broadcasts: BTreeSet<IpAddr>) {
        self.state.set_own_addresses(own, broadcasts);
    }

    /// Sets the ranges by which pods are recognised; see [`ClusterState::set_pod_ranges`].
    pub fn set_pod_ranges(&mut self, ranges: &[IpNet]) {
        self.state.set_pod_ranges(ranges);
    }
    /// Returns which of these addresses some EndpointSlice lists; see [`ClusterState::listed`].
    pub fn listed(&self, addresses: &BTreeSet<IpAddr>) -> BTreeMap<IpAddr, bool> {
        self.state.listed(addresses)
    }
    /// Returns a service with a cluster IP in the pod ranges; see [`ClusterState::in_pod_ranges`].
    pub fn in_pod_ranges(&self) -> Option<&(ObjectName, IpAddr)> {
        self.state.in_pod_ranges()
    }

    /// Returns how many services with a Local policy have endpoints only on other nodes: for inside
    /// clients by IPv4 and by IPv6, then for outside clients by IPv4 and by IPv6.
    pub fn no_local_endpoints(&self) -> [usize; 4] {
        self.no_local.each_ref().map(HashSet::len)
    }
    /// Returns how many services and Gateways have weighted endpoints.
    pub fn weighted(&self) -> usize {
        self.weighted.len()
    }
    /// Returns how many services are served.
    pub fn served(&self) -> usize {
        self.state.served_count()
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
            let warnings = self.failures.iter().map(warning).collect();
            self.warnings.replace(Topic::Apply, warnings);
        }
        self.retry.end(Instant::now(), !self.failed.is_empty());
        if self.complete && !self.is_waiting() {
            self.report();
        }
        synced
    }

    /// Says what has become of the Gateway API's objects. What is not there may still come until
    /// every object is known.
    fn report(&mut self) {
        for news in self.state.report() {
            let topic = Topic::Gateway(news.object.clone());
            self.warnings
                .replace_of(topic, news.uid_hash, news.warnings);
            if let Some(writer) = &self.writer {
                writer.set(news.object, news.write);
            }
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
        let own = service.map(|service| self.state.view().own_of(service));
        let uid_hash = service.map_or(0, |service| service.uid_hash);
        self.own.note(name, own.unwrap_or_default());
        let (plan, warnings) = match self.state.gateway(name) {
            Some(served) => {
                let slices = |name: &ObjectName| self.state.service(name).1;
                let planned = plan_gateway(served, slices, self.state.view(), &self.claims);
                let GatewayPlan {
                    plan,
                    warnings,
                    refusals,
                } = planned;
                self.state.note_refusals(name, refusals);
                (plan, warnings)
            }
            None => service
                .map(|service| plan_service(service, slices, self.state.view(), &self.claims))
                .unwrap_or_default(),
        };
        if !warnings.is_empty() || self.warned.contains(name) {
            if warnings.is_empty() {
                self.warned.remove(name);
            } else {
                self.warned.insert(name.clone());
            }
            let topic = Topic::Plan(name.clone());
            self.warnings.replace_of(topic, uid_hash, warnings);
        }
        let lacks = plan.lacks_local_endpoints();
        let sets = self.no_local.iter_mut().zip(lacks);
        for (set, belongs) in sets.chain([(&mut self.weighted, plan.is_weighted())]) {
            if belongs {
                set.insert(name.clone());
            } else {
                set.remove(name);
            }
        }
        if plan.health_check.is_some() || self.health_checked.contains(name) {
            if plan.health_check.is_some() {
                self.health_checked.insert(name.clone());
            } else {
                self.health_checked.remove(name);
            }
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

fn warning(failure: &Failure) -> Warning {
    Warning {
        object: failure.affected.to_string(),
        reason: failure.reason.to_string(),
    }
}

#[cfg(test)]
mod tests;
