// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The steps of the agent's loop: on a batch of changes, on new interfaces, on every second. Called by `agent::run`.

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::Instant,
};

use super::{
    PACKET_LINES, SWEEP,
    attachments::InterfaceAttachments,
    beside::Beside,
    contradictions::{misjudged_pods, pod_ranges, unserved_node_ports},
    faults,
    fill::{self, Counting},
    filling::Growing,
    foreign::{self, ForeignConnections},
    forward::ForwardPolicy,
    hooks::SocketHooks,
    local_ports::LocalPorts,
    memory::Memory,
    node::{self, NodeSettings},
    pin_watch::PinWatch,
    repairs::Repairs,
    standing::Standing,
    uplinks::Uplinks,
};
use crate::{
    causes::chain,
    config::{Config, ConfigFile},
    datapath::{Datapath, DatapathError, Occupancy, Options},
    interfaces::{Interface, Neighbours},
    metrics::Metrics,
    model::Kind,
    object::Warning,
    server::{
        configz::Configz,
        health::{AppliedNode, Area, Health},
        service_health,
    },
    syncer::Syncer,
    warnings::{News, Topic, Warnings},
    watch::{Batch, Change, Trigger},
};

/// Pause between two walks while the tables are nearly empty: shorter than every idle time, and long enough that an agent is
/// idle on a quiet node.
const REST: Duration = Duration::from_secs(20);

/// The agent's parts, and the state of its loop.
pub(super) struct Agent {
    pub(super) config: Config,
    /// None: there are flags only.
    pub(super) file: Option<ConfigFile>,
    pub(super) configz: Configz,
    pub(super) node_name: String,
    pub(super) syncer: Syncer,
    pub(super) datapath: Datapath,
    pub(super) health: Health,
    pub(super) health_updates: mpsc::UnboundedSender<Vec<service_health::Update>>,
    /// Where health check node ports are answered.
    pub(super) health_addresses: watch::Sender<BTreeSet<IpAddr>>,
    pub(super) metrics: Metrics,
    /// Trigger times of endpoint changes not yet in the maps.
    pub(super) triggers: Vec<Trigger>,
    pub(super) warnings: Warnings,
    pub(super) interfaces: Vec<Interface>,
    pub(super) neighbours: Neighbours,
    /// Pods of this node are handed their packets.
    pub(super) hands_to_pods: bool,
    /// Interfaces whose pods packets may be handed to past the stack.
    pub(super) open: BTreeSet<u32>,
    pub(super) attachments: InterfaceAttachments,
    /// There are new interfaces that have no programs yet.
    pub(super) more_to_attach: bool,
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
    /// Load balancers may send clients to this node.
    pub(super) eligible: bool,
    /// How the maps were opened.
    pub(super) options: Options,
    pub(super) growing: Growing,
    pub(super) grown: mpsc::Sender<Result<Datapath, DatapathError>>,
    /// The sync under way, of more services than one turn has.
    pub(super) syncing: Option<Progress>,
    /// Copies the kernel programs' lines into the log.
    pub(super) program_log: Option<JoinHandle<()>>,
    /// Since when it takes over from the maps before.
    pub(super) taking_over: Option<Instant>,
    /// The pinned maps hold services of an earlier run: these are served before the lists have come.
    pub(super) held: bool,
    /// When to continue the walk through the tables.
    pub(super) walk_at: Instant,
    pub(super) flows: Occupancy,
    pub(super) counting: Counting,
    pub(super) foreign: ForeignConnections,
    pub(super) foreign_answers: mpsc::UnboundedSender<foreign::Answer>,
    pub(super) forward: ForwardPolicy,
    pub(super) local_ports: LocalPorts,
    pub(super) repairs: Repairs,
    pub(super) pin_watch: PinWatch,
    pub(super) uplinks: Uplinks,
    pub(super) standing: Standing,
    pub(super) memory: Memory,
}

/// What a sync has done so far.
#[derive(Debug)]
pub(super) struct Progress {
    started: std::time::Instant,
    planned: usize,
    written: usize,
}

impl Agent {
    pub(super) fn take(&mut self, mut batch: Batch) {
        self.health.set_pending();
        let of_kind = |kind| {
            let changes = batch.changes.iter();
            changes.filter(|change| change.kind() == kind).count()
        };
        for kind in batch
            .changes
            .iter()
            .map(Change::kind)
            .collect::<BTreeSet<_>>()
        {
            self.metrics.state.heard_of(kind);
        }
        let (services, slices) = (of_kind(Kind::Service), of_kind(Kind::EndpointSlice));
        self.metrics.sync.queued(services, slices);
        self.triggers.append(&mut batch.triggers);
        self.listed |= batch.listed;
        for (_, warnings) in batch
            .warnings
            .iter()
            .filter(|(topic, _)| *topic == Topic::ApiServer)
        {
            self.metrics.state.set_source_failing(!warnings.is_empty());
            self.health
                .set_source_fault(warnings.first().map(ToString::to_string));
        }
        self.syncer.fold(batch);
    }

    /// Attaches, then applies dirty services; [`Self::go_on`] applies the rest if they are many. In this order, so that on a node which another proxy has served so far the
    /// programs for replies are everywhere before the first connection is translated.
    pub(super) fn sync(&mut self) {
        if !self.listed {
            self.serve_held();
            return;
        }
        self.begin_progress();
        self.apply_node();
        self.attach();
        self.go_on();
    }

    fn begin_progress(&mut self) {
        self.syncing.get_or_insert_with(|| Progress {
            started: std::time::Instant::now(),
            planned: 0,
            written: 0,
        });
    }

    /// Applies services that are dirty or wait.
    pub(super) fn go_on(&mut self) {
        self.begin_progress();
        let synced = self.growing.sync(&mut self.syncer, &mut self.datapath);
        if synced.failures_changed {
            faults::set(&self.health, self.syncer.failures());
            self.metrics
                .state
                .set_failed_services(self.syncer.failed_count());
        }
        if !synced.health.is_empty() {
            // Its receiver lives as long as the agent.
            _ = self.health_updates.send(synced.health);
        }
        if let Some(progress) = &mut self.syncing {
            progress.planned += synced.planned;
            progress.written += synced.written;
        }
        if !self.syncer.is_waiting() {
            if let Some(progress) = self.syncing.take() {
                self.all_applied(&progress);
            }
        } else if synced.failures_changed {
            self.grow();
        }
    }

    /// Whether the next services that wait can be applied: not while larger maps are on their way.
    pub(super) fn may_go_on(&self) -> bool {
        self.syncer.is_waiting() && !self.growing.is_under_way()
    }

    fn all_applied(&mut self, progress: &Progress) {
        let first = !std::mem::replace(&mut self.served, true);
        self.look_for_foreign();
        if first {
            self.apply_node();
        }
        self.take_over();
        self.memory.synced(first, progress.planned);
        let (planned, written) = (progress.planned, progress.written);
        let elapsed = progress.started.elapsed();
        let triggers = std::mem::take(&mut self.triggers);
        self.metrics.sync.done(elapsed, &triggers);
        let no_local = self.syncer.no_local_endpoints();
        self.metrics
            .sync
            .set_services(self.syncer.served(), no_local);
        if first {
            let interfaces = self.attachments.len();
            tracing::info!(planned, written, interfaces, ?elapsed, "ready");
        } else {
            tracing::debug!(planned, written, ?elapsed, "synced");
        }
        // Last: who has seen it in /healthz finds it in the log and the metrics, too.
        let node = self.syncer.node();
        // KUBE: not before the Node object has been seen; if it goes, its last state counts.
        self.eligible = node.map_or(self.eligible, |node| node.eligible);
        let applied = node.map(|node| AppliedNode {
            name: node.name.name.to_string(),
            resource_version: node.resource_version.to_string(),
        });
        self.health.set_applied(applied, self.eligible);
    }

    pub(super) fn try_again(&mut self) {
        self.syncer.retry();
        self.sync();
    }

    /// Has the Node object say how this node stands, if that has changed.
    fn tell_node(&mut self) {
        let illness = self.health.illness();
        let now = std::time::Instant::now();
        let reason = illness.as_ref().map(|(reason, _)| *reason);
        if !self.standing.is_news(reason, now) {
            return;
        }
        let healthy = || {
            format!(
                "portolan {} serves {} services on this node",
                env!("CARGO_PKG_VERSION"),
                self.datapath.service_count()
            )
        };
        let (news, reason) = match illness {
            Some((_, whole)) => (News::Unhealthy, whole),
            None => (News::Healthy, healthy()),
        };
        self.warnings.report_node(&self.node_name, news, &reason);
    }

    /// Once a second: continues the walk through the tables, and tries again what has no retry time of its own.
    pub(super) fn sweep(&mut self) {
        self.datapath.collect();
        if Instant::now() >= self.walk_at {
            self.walk();
        }
        self.memory.look(Instant::now());
        self.tell_node();
        self.metrics.set_fill(&self.flows, &self.datapath.fill());
        self.counting
            .go_on(Instant::now(), &self.config.pin_directory, &self.metrics);
        let interfaces = self.attachments.counts(&self.interfaces);
        let hooks = self.datapath.hook_counts();
        self.metrics.state.set_attached(interfaces, hooks);
        if self.served {
            self.look_for_foreign();
        }
        if self.foreign.give_datagrams_up(Instant::now()) {
            self.apply_node();
            self.health.set_datagrams_wait(false);
        }
        let local_ports_changed = self.local_ports.look(Instant::now());
        if self.look_at_rules() || local_ports_changed {
            self.apply_node();
        }
        if self.listed && self.applied.is_none() {
            self.sync();
        } else if self.listed {
            self.attach();
            if self.served && !self.syncer.is_waiting() {
                self.take_over();
            }
        } else {
            self.serve_held();
        }
        self.grow();
        self.repair(false);
    }

    /// Looks at the node's rules if it is time; whether others masquerade by them now and did not before, or the other way round.
    pub(super) fn look_at_rules(&mut self) -> bool {
        // A shadow changes no rule, and masquerades nothing.
        if self.config.shadow {
            return false;
        }
        let before = self.forward.do_others_masquerade();
        let (accepts, mark) = (self.config.accept_forward, self.config.marks.masquerade);
        if let Some(warnings) = self.forward.look(Instant::now(), accepts, mark) {
            self.warnings.replace(Topic::ForwardPolicy, warnings);
        }
        self.forward.do_others_masquerade() != before
    }

    fn walk(&mut self) {
        let warnings = match self.datapath.sweep() {
            Ok(flows) => {
                if flows.complete && flows.is_nearly_empty() {
                    self.walk_at = Instant::now() + REST;
                }
                self.flows = flows;
                fill::nearly_full(&flows).collect()
            }
            Err(error) => vec![Warning {
                object: "flow tables".to_owned(),
                reason: format!(
                    "idle flows could not be removed: {}; it is tried again every second",
                    chain(&error),
                ),
            }],
        };
        self.warnings.replace(Topic::Flows, warnings);
    }

    /// Stores the node's settings and addresses if they have changed.
    pub(super) fn apply_node(&mut self) {
        let (config, interfaces) = (&self.config, &self.interfaces);
        let node = self.syncer.node();
        let given: Vec<_> = config
            .node_ips
            .iter()
            .copied()
            .chain(config.bound_ip())
            .collect();
        let (ips, guessed) = node::fallback_ips(&self.node_name, node, &given, interfaces);
        self.syncer.set_fallback_ips(ips);
        self.syncer
            .set_own_addresses(node::own_addresses(config, interfaces));
        self.syncer.set_pod_ranges(pod_ranges(config));
        // Unallocated cluster IPs are dropped only once it is known which are allocated.
        let ranges = if self.served {
            self.syncer.service_ranges()
        } else {
            BTreeSet::new()
        };
        let mut unstored = None;
        let mut faults = Vec::from_iter(guessed);
        faults.extend(node::unheld_ranges(config, &ranges));
        let internal_ips = &self.syncer.view().internal_ips;
        faults.extend(unserved_node_ports(config, internal_ips, interfaces));
        if self.listed {
            faults.extend(misjudged_pods(config, &self.node_name, &self.syncer));
        }
        let (ports, shared) = self.local_ports.leave(config.masquerade_ports);
        faults.extend(shared);
        let wanted = NodeSettings::new(
            config,
            self.netns,
            self.syncer.node(),
            &ranges,
            internal_ips,
            interfaces,
        )
        .with_foreign_connections(self.foreign.are_held(), self.foreign.do_datagrams_wait())
        .beside_rules(self.forward.do_others_masquerade())
        .with_masquerade_ports(ports);
        let health_addresses = node::health_check_addresses(config, &wanted.addresses);
        self.health_addresses.send_if_modified(|known| {
            let before = std::mem::replace(known, health_addresses);
            before != *known
        });
        if self.applied.as_ref() != Some(&wanted) {
            // Settings also where there is no room for every address, as on a node with IPVS.
            let addresses = self.datapath.set_node_addresses(&wanted.addresses);
            let settings = self.datapath.set_settings(&wanted.settings);
            self.applied = match addresses.and(settings) {
                Ok(()) => Some(wanted),
                Err(error) => {
                    unstored = Some(Warning {
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
        faults.extend(unstored.clone());
        self.warnings.replace(Topic::Node, faults);
        self.health.set_faults(Area::Node, &unstored);
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

    /// Has foreign connections imported if it is time; [`Self::hear_of_foreign`] gets the answer. Not while other maps take over: what
    /// is imported into those before could be lost.
    fn look_for_foreign(&mut self) {
        // A shadow leaves them where they are: it resets nothing and takes nothing over.
        if self.config.shadow {
            return;
        }
        let is_settled = self.datapath.predecessors().is_none() && !self.growing.is_under_way();
        if is_settled && self.foreign.ask(Instant::now()) {
            foreign::import(self.foreign_answers.clone(), self.datapath.importer());
        }
    }

    pub(super) fn hear_of_foreign(&mut self, answer: &foreign::Answer) {
        let warning = self.foreign.hear(Instant::now(), answer);
        if let Ok(imported) = answer {
            self.metrics.state.imported(imported.connections);
        }
        self.warnings
            .replace(Topic::ForeignConnections, Vec::from_iter(warning));
        self.apply_node();
        self.health.set_datagrams_wait(false);
    }
}
