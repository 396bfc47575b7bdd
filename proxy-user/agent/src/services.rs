// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes the cluster's services into the maps: takes batches of changes, applies the resulting
//! plans in turns, and turns failures into faults. A part of `agent`.

use std::collections::BTreeSet;

use control::{
    apply::{Affected, Failure},
    change::{Batch, Change, Trigger},
    model::Kind,
    syncer::Syncer,
    warnings::Topic,
};
use tokio::sync::mpsc;

use super::{agent::Shared, growth::Growth};
use crate::server::{
    health::{AppliedNode, Area, Health},
    service_health,
};

/// The cluster's services, and which of them are in the maps already.
pub(super) struct Services {
    pub(super) syncer: Syncer,
    health_updates: mpsc::UnboundedSender<Vec<service_health::Update>>,
    /// Trigger times (when the pods or services changed) of endpoint changes that are not in the
    /// maps yet.
    triggers: Vec<Trigger>,
    /// True once the source has sent every object that it could read.
    pub(super) listed: bool,
    /// True once the first sync is complete: all services are in the maps.
    pub(super) served: bool,
    /// True if the pinned maps contained services of an earlier run at the start; these are served
    /// before the lists of objects arrive.
    pub(super) pinned: bool,
    /// True if load balancers may send clients to this node.
    eligible: bool,
    /// The sync that is under way, which may need several turns; `None` between syncs.
    syncing: Option<Progress>,
}

/// What the present sync has done so far.
#[derive(Debug)]
pub(super) struct Progress {
    started: std::time::Instant,
    pub(super) planned: usize,
    pub(super) written: usize,
}

/// What is left after one turn of a sync.
#[derive(Debug)]
pub(super) enum Turn {
    /// Some services wait for the next turn.
    More,
    /// Some services wait for the next turn, and other services than before are refused by the
    /// maps.
    Refused,
    /// Every dirty service (changed since it was last written) is applied.
    Complete(Progress),
}

impl Services {
    pub(super) fn new(
        syncer: Syncer,
        health_updates: mpsc::UnboundedSender<Vec<service_health::Update>>,
        pinned: bool,
    ) -> Self {
        Self {
            syncer,
            health_updates,
            triggers: Vec::new(),
            listed: false,
            served: false,
            pinned,
            eligible: false,
            syncing: None,
        }
    }

    /// Takes in a batch of changes; [`Self::go_on`] applies it. True if a Node or ServiceCIDR
    /// object is among the changes.
    pub(super) fn take(&mut self, shared: &Shared, mut batch: Batch) -> bool {
        shared.health.set_pending();
        let of_kind = |kind| {
            let changes = batch.changes.iter();
            changes.filter(|change| change.kind() == kind).count()
        };
        let kinds: BTreeSet<_> = batch.changes.iter().map(Change::kind).collect();
        for kind in kinds {
            shared.metrics.state.heard_of(kind);
        }
        let (services, slices) = (of_kind(Kind::Service), of_kind(Kind::EndpointSlice));
        shared.metrics.sync.queued(services, slices);
        let concerns_node = of_kind(Kind::Node) + of_kind(Kind::ServiceCidr) > 0;
        self.triggers.append(&mut batch.triggers);
        self.listed |= batch.listed;
        let warnings = batch.warnings.iter();
        for (_, warnings) in warnings.filter(|(topic, _)| *topic == Topic::ApiServer) {
            let fault = warnings.first().map(ToString::to_string);
            let failing = &shared.metrics.state.source_failing;
            failing.set(fault.is_some().into());
            shared.health.set_source_fault(fault);
        }
        self.syncer.fold(batch);
        concerns_node
    }

    /// Starts to count and time a sync, unless one is under way.
    pub(super) fn begin(&mut self) {
        self.syncing.get_or_insert_with(|| Progress {
            started: std::time::Instant::now(),
            planned: 0,
            written: 0,
        });
    }

    /// True if services wait and their next turn may come: not while larger maps are being made or
    /// filled.
    pub(super) fn may_go_on(&self, growth: &Growth) -> bool {
        self.syncer.is_waiting() && !growth.is_under_way()
    }

    /// Applies the next dirty or waiting services, as many as one turn takes, also to maps that are
    /// being filled.
    pub(super) fn go_on(&mut self, shared: &mut Shared, growth: &mut Growth) -> Turn {
        self.begin();
        let synced = growth.sync(&mut self.syncer, &mut shared.datapath);
        if synced.failures_changed {
            set_faults(&shared.health, &self.syncer.failures);
            let failed = self.syncer.failed.len() as i64;
            shared.metrics.state.failed_services.set(failed);
        }
        if !synced.health.is_empty() {
            // Sending cannot fail: the receiver exists as long as the agent.
            _ = self.health_updates.send(synced.health);
        }
        if let Some(progress) = &mut self.syncing {
            progress.planned += synced.planned;
            progress.written += synced.written;
        }
        if self.syncer.is_waiting() {
            return if synced.failures_changed {
                Turn::Refused
            } else {
                Turn::More
            };
        }
        self.syncing.take().map_or(Turn::More, Turn::Complete)
    }

    /// Reports that every service is applied: in the metrics, in the log, and last in /healthz, so
    /// that whoever sees it there finds it in the others, too. `first`: after the first sync, the
    /// number of attached interfaces; else `None`.
    pub(super) fn report(&mut self, shared: &Shared, progress: &Progress, first: Option<usize>) {
        let (planned, written, elapsed) = (
            progress.planned,
            progress.written,
            progress.started.elapsed(),
        );
        let triggers = std::mem::take(&mut self.triggers);
        shared.metrics.sync.done(elapsed, &triggers);
        let (served, weighted) = (self.syncer.state.served_count(), self.syncer.weighted.len());
        let no_local = self.syncer.no_local_endpoints();
        shared.metrics.sync.set_services(served, weighted, no_local);
        if let Some(interfaces) = first {
            tracing::info!(planned, written, interfaces, ?elapsed, "ready");
        } else {
            tracing::debug!(planned, written, ?elapsed, "synced");
        }
        let node = self.syncer.state.node();
        // KUBE: a node is not eligible before its Node object is seen; if the object is gone, its
        // last state counts.
        self.eligible = node.map_or(self.eligible, |node| node.eligible);
        let applied = node.map(|node| AppliedNode {
            name: node.name.name.to_string(),
            resource_version: node.resource_version.to_string(),
        });
        shared.health.set_applied(applied, self.eligible);
    }
}

/// Replaces the faults of services, and those of the settings in the maps that all services share.
fn set_faults(health: &Health, failures: &[Failure]) {
    for (area, of_services) in [(Area::Services, true), (Area::Shared, false)] {
        let is_service = |failure: &Failure| matches!(failure.affected, Affected::Service(_));
        let failures = failures.iter().filter(|one| is_service(one) == of_services);
        let faults: Vec<_> = failures.map(Failure::warning).collect();
        health.set_faults(area, &faults);
    }
}
