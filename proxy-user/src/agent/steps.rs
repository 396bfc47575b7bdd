// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The steps of the agent's loop: on a batch of changes, on new interfaces, on every second. Called by `agent::run`.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::jiff::Timestamp;
use tokio::{sync::mpsc, task::JoinHandle, time::Instant};

use super::{
    attachments::InterfaceAttachments,
    beside::Beside,
    foreign::ForeignConnections,
    PACKET_LINES, SWEEP,
    hooks::SocketHooks,
    node::{self, NodeSettings},
};
use crate::{
    causes::chain,
    config::{Config, Forwarding},
    datapath::{self, Datapath, DatapathError, Occupancy, Options},
    interfaces::Interface,
    metrics::Metrics,
    model::Kind,
    object::Warning,
    server::{
        health::{AppliedNode, Health},
        service_health,
    },
    syncer::Syncer,
    warnings::{Topic, Warnings},
    watch::Batch,
};

/// Pause between two walks while the tables are nearly empty: shorter than every idle time, and long enough that an agent is
/// idle on a quiet node.
const REST: Duration = Duration::from_secs(20);

/// A sync of so many plans leaves enough unused heap to give back to the kernel.
const MANY_PLANS: usize = 1_000;

/// The agent's parts, and the state of its loop.
pub(super) struct Agent {
    pub(super) config: Config,
    pub(super) node_name: String,
    pub(super) syncer: Syncer,
    pub(super) datapath: Datapath,
    pub(super) health: Health,
    pub(super) health_updates: mpsc::UnboundedSender<Vec<service_health::Update>>,
    pub(super) metrics: Metrics,
    /// Trigger times of endpoint changes not yet in the maps.
    pub(super) triggers: Vec<Timestamp>,
    pub(super) warnings: Warnings,
    pub(super) interfaces: Vec<Interface>,
    pub(super) attachments: InterfaceAttachments,
    pub(super) beside: Beside,
    pub(super) hooks: SocketHooks,
    /// The cookie of the node's own network namespace.
    pub(super) netns: u64,
    /// The node's settings and addresses that were last stored in the maps.
    pub(super) applied: Option<NodeSettings>,
    /// The source has sent every object that it could read.
    pub(super) listed: bool,
    /// Services are in the maps.
    pub(super) served: bool,
    pub(super) retry: Option<Instant>,
    /// How the maps were opened.
    pub(super) options: Options,
    /// Until when no larger maps are made: others are being made, or could not be.
    pub(super) growing: Option<Instant>,
    pub(super) grown: mpsc::Sender<Result<Datapath, DatapathError>>,
    /// Copies the kernel programs' lines into the log.
    pub(super) program_log: Option<JoinHandle<()>>,
    /// Since when it takes over from the maps before.
    pub(super) taking_over: Option<Instant>,
    /// When to continue the walk through the tables.
    pub(super) walk_at: Instant,
    pub(super) flows: Occupancy,
    pub(super) foreign: ForeignConnections,
}

impl Agent {
    pub(super) fn take(&mut self, mut batch: Batch) {
        self.health.set_pending();
        let of_kind = |kind| {
            let changes = batch.changes.iter();
            changes.filter(|change| change.kind() == kind).count()
        };
        let (services, slices) = (of_kind(Kind::Service), of_kind(Kind::EndpointSlice));
        self.metrics.sync.queued(services, slices);
        self.triggers.append(&mut batch.triggers);
        self.listed |= batch.listed;
        for (_, warnings) in batch
            .warnings
            .iter()
            .filter(|(topic, _)| *topic == Topic::ApiServer)
        {
            self.health
                .set_source_fault(warnings.first().map(ToString::to_string));
        }
        self.syncer.fold(batch);
    }

    /// Attaches, then applies all dirty services. In this order, so that on a node which another proxy has served so far the
    /// programs for replies are everywhere before the first connection is translated.
    pub(super) fn sync(&mut self) {
        if !self.listed {
            return;
        }
        let started = std::time::Instant::now();
        self.apply_node();
        self.attach();
        let synced = self.syncer.sync(&mut self.datapath);
        self.retry = synced.retry.map(|wait| Instant::now() + wait);
        if !synced.health.is_empty() {
            // Its receiver lives as long as the agent.
            _ = self.health_updates.send(synced.health);
        }
        let first = !std::mem::replace(&mut self.served, true);
        if self.look_for_foreign() || first {
            self.apply_node();
        }
        self.take_over();
        let node = self.syncer.node();
        let eligible = node.is_none_or(|node| node.eligible);
        let applied = node.map(|node| AppliedNode {
            name: node.name.name.to_string(),
            resource_version: node.resource_version.to_string(),
        });
        if first || synced.planned >= MANY_PLANS {
            datapath::trim_heap();
        }
        let was_healthy = self.health.is_healthy();
        self.health.set_applied(applied, eligible);
        let (planned, written) = (synced.planned, synced.written);
        let elapsed = started.elapsed();
        let triggers = std::mem::take(&mut self.triggers);
        self.metrics.sync.done(elapsed, &triggers);
        let [internal, external] = self.syncer.no_local_endpoints();
        let served = self.syncer.served();
        self.metrics.sync.set_services(served, internal, external);
        if was_healthy {
            tracing::debug!(planned, written, ?elapsed, "synced");
        } else {
            let interfaces = self.attachments.len();
            tracing::info!(planned, written, interfaces, ?elapsed, "ready");
        }
    }

    pub(super) fn set_interfaces(&mut self, interfaces: Vec<Interface>) {
        self.interfaces = interfaces;
        // Plans depend on the node's addresses, because these decide about source ranges.
        self.sync();
    }

    pub(super) fn try_again(&mut self) {
        self.syncer.retry();
        self.sync();
    }

    /// Once a second: continues the walk through the tables, and tries again what has no retry time of its own.
    pub(super) fn sweep(&mut self) {
        if Instant::now() >= self.walk_at {
            self.walk();
        }
        self.metrics.set_fill(&self.flows, &self.datapath.fill());
        if self.served && self.look_for_foreign() {
            self.apply_node();
        }
        if self.listed && self.applied.is_none() {
            self.sync();
        } else if self.listed {
            self.attach();
            if self.served {
                self.take_over();
            }
        }
        self.grow();
    }

    fn walk(&mut self) {
        let fault = match self.datapath.sweep() {
            Ok(flows) => {
                if flows.complete && flows.is_nearly_empty() {
                    self.walk_at = Instant::now() + REST;
                }
                self.flows = flows;
                None
            }
            Err(error) => Some(Warning {
                object: "flow tables".to_owned(),
                reason: format!(
                    "idle flows could not be removed: {}; it is tried again every second",
                    chain(&error),
                ),
            }),
        };
        self.warnings.replace(Topic::Flows, Vec::from_iter(fault));
    }

    /// Stores the node's settings and addresses if they have changed.
    fn apply_node(&mut self) {
        let (config, interfaces) = (&self.config, &self.interfaces);
        let node = self.syncer.node();
        let (ips, guessed) =
            node::fallback_ips(&self.node_name, node, &config.node_ips, interfaces);
        self.syncer.set_fallback_ips(ips);
        // Unallocated cluster IPs are dropped only once it is known which are allocated.
        let ranges = if self.served {
            self.syncer.service_ranges()
        } else {
            BTreeSet::new()
        };
        let mut faults = Vec::from_iter(guessed);
        faults.extend(node::unheld_ranges(config, &ranges));
        let wanted = NodeSettings::new(
            config,
            self.netns,
            self.syncer.node(),
            &ranges,
            &self.syncer.view().internal_ips,
            interfaces,
        )
        .with_foreign_connections(self.foreign.are_held());
        if self.applied.as_ref() != Some(&wanted) {
            let stored = self
                .datapath
                .set_node_addresses(&wanted.addresses)
                .and_then(|()| self.datapath.set_settings(&wanted.settings));
            self.applied = match stored {
                Ok(()) => Some(wanted),
                Err(error) => {
                    faults.push(Warning {
                        object: format!("Node {}", self.node_name),
                        reason: format!(
                            "its settings and addresses could not be stored: {}; it is tried again every second",
                            chain(&error),
                        ),
                    });
                    None
                }
            };
        }
        self.warnings.replace(Topic::Node, faults);
    }

    /// Copies the lines of the loaded programs into the log, in place of those before.
    pub(super) fn follow_program_log(&mut self) {
        let every = if self.config.log_packets {
            PACKET_LINES
        } else {
            SWEEP
        };
        if let Some(before) = self.program_log.take() {
            before.abort();
        }
        match self.datapath.program_log() {
            Ok(log) => self.program_log = Some(tokio::spawn(log.follow(every))),
            Err(error) => tracing::warn!("{}", chain(&error)),
        }
    }

    /// Looks for foreign connections; whether the answer has changed.
    fn look_for_foreign(&mut self) -> bool {
        let syncer = &self.syncer;
        let ask = || datapath::has_translated(|destination| syncer.has_destination(destination));
        self.foreign.look(Instant::now(), ask)
    }

    /// Looks at what stands beside the attached programs.
    fn look_beside(&mut self) {
        let found = self.beside.look(
            Instant::now(),
            &mut self.datapath,
            self.attachments.attached(),
            &self.interfaces,
            self.config.forwarding == Forwarding::Redirect,
        );
        if let Some(found) = found {
            let (before, left) = (found.before_count, found.left_interfaces);
            self.metrics.beside.set(before, left);
            let topic = Topic::ForeignPrograms((&*self.node_name).into());
            self.warnings
                .replace(topic, found.before.into_iter().collect());
            self.warnings.replace(Topic::Forwarding, found.left);
        }
    }

    /// Attaches what is not attached yet; whether everything is.
    pub(super) fn attach(&mut self) -> bool {
        if !self.datapath.may_attach() {
            return false;
        }
        let faults = self
            .attachments
            .update(&mut self.datapath, &self.interfaces);
        let mut complete = faults.is_empty();
        self.warnings.replace(Topic::Interfaces, faults);
        self.look_beside();
        let faults = self.hooks.update(&mut self.datapath);
        complete &= faults.is_empty();
        self.warnings.replace(Topic::Sockets, faults);
        complete
    }
}
