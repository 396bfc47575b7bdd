// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One sync: dirty services are planned anew and applied. What could not be applied is handed in again
//! later. Driven by `agent`.

use std::{
    collections::{BTreeSet, HashSet},
    net::IpAddr,
    time::Duration,
};

use ipnet::IpNet;

use crate::{
    datapath::{ApplyReport, Datapath},
    model::Node,
    plan::{ObjectName, ServicePlan, Warning},
    planner::{NodeView, claims::Claims, plan_service},
    server::service_health,
    tracker::ClusterState,
    warnings::{Topic, Warnings},
    watch::{Batch, Change},
};

/// How many plans exist at a time: a large cluster's would fill more memory than everything else.
const CHUNK: usize = 1024;
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(60);

/// Where plans go.
pub trait Kernel {
    fn apply(&mut self, changes: &[(ObjectName, ServicePlan)]) -> ApplyReport;
    fn prune(&mut self, known: &HashSet<ObjectName>) -> ApplyReport;
}

impl Kernel for Datapath {
    fn apply(&mut self, changes: &[(ObjectName, ServicePlan)]) -> ApplyReport {
        Self::apply(self, changes)
    }
    fn prune(&mut self, known: &HashSet<ObjectName>) -> ApplyReport {
        Self::prune(self, known)
    }
}

/// What a sync did.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Synced {
    /// Services planned.
    pub planned: usize,
    /// Map elements written.
    pub written: usize,
    /// What changed for the health check node ports.
    pub health: Vec<service_health::Update>,
    /// When to try again what could not be applied.
    pub retry: Option<Duration>,
}

/// From cluster state to applied plans.
#[derive(Debug)]
pub struct Syncer {
    state: ClusterState,
    claims: Claims,
    warnings: Warnings,
    /// Services with warnings about their plan, so that these can end.
    warned: HashSet<ObjectName>,
    /// Services with a health check node port, so that its answers can end.
    health_checked: HashSet<ObjectName>,
    /// Services of a Local policy whose endpoints are all elsewhere: for those inside, for those outside.
    no_local: [HashSet<ObjectName>; 2],
    /// Not applied, by what the kernel said of each.
    failed: BTreeSet<ObjectName>,
    failures: Vec<Warning>,
    backoff: Duration,
    complete: bool,
    pruned: bool,
}

impl Syncer {
    pub fn new(node_name: &str, warnings: Warnings) -> Self {
        Self {
            state: ClusterState::new(node_name),
            claims: Claims::default(),
            warnings,
            warned: HashSet::new(),
            health_checked: HashSet::new(),
            no_local: Default::default(),
            failed: BTreeSet::new(),
            failures: Vec::new(),
            backoff: FIRST_RETRY,
            complete: false,
            pruned: false,
        }
    }

    /// Takes in what a source has sent.
    pub fn fold(&mut self, batch: Batch) {
        for (topic, warnings) in batch.warnings {
            self.warnings.replace(topic, warnings);
        }
        // What goes may make room for what found none.
        if batch.changes.iter().any(|c| matches!(c, Change::Delete(_))) {
            self.retry();
        }
        for change in batch.changes {
            self.state.fold(change);
        }
        self.complete = batch.complete;
    }

    /// Marks what could not be applied to be tried again.
    pub fn retry(&mut self) {
        self.state.mark_dirty(std::mem::take(&mut self.failed));
    }

    pub fn view(&self) -> &NodeView {
        self.state.view()
    }
    pub fn node(&self) -> Option<&Node> {
        self.state.node().map(AsRef::as_ref)
    }
    /// Whether an address is some service's cluster IP.
    pub fn has_cluster_ip(&self, address: IpAddr) -> bool {
        self.claims.has_cluster_ip(address)
    }
    /// See [`ClusterState::service_ranges`].
    pub fn service_ranges(&self) -> BTreeSet<IpNet> {
        self.state.service_ranges()
    }
    /// See [`ClusterState::set_fallback_ips`].
    pub fn set_fallback_ips(&mut self, ips: Vec<IpAddr>) {
        self.state.set_fallback_ips(ips);
    }

    /// How many services of a Local policy have endpoints elsewhere only: for clients inside, for those outside.
    pub fn no_local_endpoints(&self) -> [usize; 2] {
        [self.no_local[0].len(), self.no_local[1].len()]
    }
    /// How many services are served.
    pub fn served(&self) -> usize {
        self.state.served_count()
    }

    /// Plans and applies what changed; once the source has told everything, removes what it did not name.
    pub fn sync(&mut self, kernel: &mut impl Kernel) -> Synced {
        let mut synced = Synced::default();
        let dirty = self.claim();
        let mut errors = Vec::new();
        let mut changes = Vec::with_capacity(dirty.len().min(CHUNK));
        for names in dirty.chunks(CHUNK) {
            changes.clear();
            changes.extend(names.iter().map(|name| self.plan(name, &mut synced)));
            let report = kernel.apply(&changes);
            synced.planned += changes.len();
            synced.written += report.written;
            self.note_failures(&changes, &report.errors);
            errors.extend(report.errors);
        }
        if self.complete && !self.pruned {
            let report = kernel.prune(&self.state.served());
            synced.written += report.written;
            errors.extend(report.errors);
            self.pruned = true;
        }
        // Failures that were not tried again still hold.
        let named = |name: &ObjectName| format!("Service {name}");
        let failed: HashSet<String> = self.failed.iter().map(named).collect();
        let anew: HashSet<&Warning> = errors.iter().collect();
        self.failures
            .retain(|held| failed.contains(&held.object) && !anew.contains(held));
        self.failures.append(&mut errors);
        self.warnings.replace(Topic::Apply, self.failures.clone());
        synced.retry = (!self.failed.is_empty()).then_some(self.backoff);
        self.backoff = match synced.retry {
            Some(wait) => (2 * wait).min(LAST_RETRY),
            None => FIRST_RETRY,
        };
        synced
    }

    /// Settles who holds which frontend; returns every service whose plan may differ now, ordered.
    fn claim(&mut self) -> Vec<ObjectName> {
        let mut dirty = self.state.take_dirty();
        let mut affected = Vec::new();
        for name in &dirty {
            let (service, _) = self.state.service(name);
            affected.extend(self.claims.update(name, service));
        }
        dirty.extend(affected);
        // Stable, for what comes in order is sorted already.
        dirty.sort();
        dirty.dedup();
        dirty
    }

    fn plan(&mut self, name: &ObjectName, synced: &mut Synced) -> (ObjectName, ServicePlan) {
        let (service, slices) = self.state.service(name);
        let (plan, warnings) = service
            .map(|service| plan_service(service, slices, self.state.view(), &self.claims))
            .unwrap_or_default();
        if !warnings.is_empty() || self.warned.contains(name) {
            if warnings.is_empty() {
                self.warned.remove(name);
            } else {
                self.warned.insert(name.clone());
            }
            self.warnings.replace(Topic::Plan(name.clone()), warnings);
        }
        for (set, lacks) in self.no_local.iter_mut().zip(plan.lacks_local_endpoints()) {
            if lacks {
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

    fn note_failures(&mut self, changes: &[(ObjectName, ServicePlan)], errors: &[Warning]) {
        if errors.is_empty() {
            return;
        }
        let failed: HashSet<&str> = errors.iter().map(|error| error.object.as_str()).collect();
        let names = changes.iter().map(|(name, _)| name);
        let before = self.failed.len();
        self.failed.extend(
            names
                .clone()
                .filter(|name| failed.contains(format!("Service {name}").as_str()))
                .cloned(),
        );
        // A failure that names no service may concern any of them.
        if self.failed.len() == before {
            self.failed.extend(names.cloned());
        }
    }
}

#[cfg(test)]
mod tests;
