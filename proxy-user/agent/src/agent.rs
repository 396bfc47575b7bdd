// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The agent's parts, and the steps that concern more than one of them: the first sync, a new list
//! of the node's interfaces, the checks every second. The loop in `run` (lib.rs) calls these steps.

use std::time::Duration;

use config::{Config, ConfigFile};
use control::{causes::chain, change::Batch, warnings::Warnings};
use datapath::{Datapath, Options, maps::pins};
use linux::interfaces::Interface;
use tokio::task::JoinHandle;

use super::{
    PACKET_LINES, SWEEP,
    attachments::Attachments,
    growth::Growth,
    node::{Node, foreign_connections},
    services::{Progress, Services, Turn},
};
use crate::{
    metrics::Metrics,
    server::{health::Health, metrics::Configz},
};

/// After a sync of at least this many service plans, much of the heap is unused and worth giving
/// back to the kernel.
const MANY_PLANS: usize = 1_000;

/// The values that every part of the agent reads or writes.
pub(super) struct Shared {
    pub(super) config: Config,
    pub(super) node_name: String,
    /// The options that `datapath` was opened with.
    pub(super) options: Options,
    pub(super) datapath: Datapath,
    pub(super) interfaces: Vec<Interface>,
    pub(super) health: Health,
    pub(super) metrics: Metrics,
    pub(super) warnings: Warnings,
}

/// The agent's parts; the loop in `run` calls them.
pub(super) struct Agent {
    pub(super) shared: Shared,
    /// The configuration file; `None` if the agent was started with flags only.
    pub(super) file: Option<ConfigFile>,
    pub(super) configz: Configz,
    pub(super) services: Services,
    pub(super) attachments: Attachments,
    pub(super) node: Node,
    pub(super) growth: Growth,
    /// True while the first sync waits for programs to be attached.
    pub(super) first_waits: bool,
    /// The first sync, from its end until it is reported.
    pub(super) unreported: Option<Progress>,
    /// The task that copies the log lines of the eBPF programs into the agent's log. `None` if the
    /// lines cannot be read.
    pub(super) program_log: Option<JoinHandle<()>>,
}

impl Agent {
    /// Handles one event of the loop and measures how long it takes. `kind`: its name in metrics.
    pub(super) fn turn<T>(&mut self, kind: &'static str, handle: impl FnOnce(&mut Self) -> T) -> T {
        let began = std::time::Instant::now();
        let handled = handle(self);
        self.shared.metrics.sync.turned(kind, began.elapsed());
        handled
    }

    /// Takes in a batch of changes of Kubernetes objects; [`Self::sync`] applies it to the maps.
    pub(super) fn take(&mut self, batch: Batch) {
        let concerns_node = self.services.take(&self.shared, batch);
        if self.services.served && concerns_node {
            self.apply_node();
        } else {
            self.node.is_outdated = true;
        }
    }

    /// Writes dirty services (changed since they were last written) into the maps; if they are
    /// many, [`Self::go_on`] writes the rest. Nothing else delays a change: what the node and its
    /// interfaces need is checked every second. Before the first sync programs are attached, in
    /// turns: on a node that another proxy has served so far, the programs for replies are then
    /// everywhere before a connection is translated.
    pub(super) fn sync(&mut self) {
        if !self.services.listed {
            self.serve_pinned();
            return;
        }
        self.services.begin();
        if !self.services.served {
            self.apply_node();
            self.attach();
            self.first_waits = self.attachments.more_to_attach;
            if self.first_waits {
                // `attach_more` comes back when it is done.
                return;
            }
        } else if !self.node.is_applied() {
            self.apply_node();
        }
        self.go_on();
    }

    /// Writes one turn of the services that are dirty or wait for another attempt into the maps.
    pub(super) fn go_on(&mut self) {
        match self.services.go_on(&mut self.shared, &mut self.growth) {
            Turn::More => {}
            Turn::Refused => self.growth.grow(&mut self.shared, &self.services),
            Turn::Complete(progress) => self.all_applied(progress),
        }
    }

    fn all_applied(&mut self, progress: Progress) {
        let first = !std::mem::replace(&mut self.services.served, true);
        self.node.look_for_foreign(&self.shared);
        if first {
            self.apply_node();
        }
        self.attachments.take_over(&mut self.shared, &self.services);
        if first || progress.planned >= MANY_PLANS {
            linux::trim_heap();
        }
        if first || self.unreported.is_some() {
            self.unreported.get_or_insert(progress);
            self.report_first();
        } else {
            self.services.report(&self.shared, &progress, None);
        }
    }

    /// Reports the first sync, unless previous maps are still being taken over: until then, not
    /// everything new may be served.
    fn report_first(&mut self) {
        if !self.attachments.takes_over()
            && let Some(progress) = self.unreported.take()
        {
            let interfaces = self.attachments.interface_count();
            self.services
                .report(&self.shared, &progress, Some(interfaces));
        }
    }

    /// True if [`Self::attach_more`] should be called soon. Another event, as the look of each
    /// second, may have attached what the first sync waits for.
    pub(super) fn has_more_to_attach(&self) -> bool {
        self.attachments.has_more() || self.first_waits
    }

    /// Goes on with attaching or taking over where time ran out, and then with the first sync.
    pub(super) fn attach_more(&mut self) {
        if self.attachments.has_more() {
            self.attachments.go_on(&mut self.shared, &self.services);
        }
        if self.first_waits && !self.attachments.more_to_attach {
            self.sync();
        }
        self.report_first();
    }

    pub(super) fn try_again(&mut self) {
        self.services.syncer.retry();
        self.sync();
    }

    /// Attaches the programs before the lists of objects arrive, if the pinned maps contain
    /// services: these are served as an earlier run has stored them, with its settings and
    /// addresses.
    pub(super) fn serve_pinned(&mut self) {
        if self.services.pinned {
            self.attach();
        }
    }

    fn attach(&mut self) {
        self.attachments
            .attach(&mut self.shared, self.services.served);
    }

    pub(super) fn apply_node(&mut self) {
        self.node.apply(&mut self.shared, &mut self.services);
    }

    pub(super) fn set_interfaces(&mut self, interfaces: Vec<Interface>) {
        self.shared.interfaces = interfaces;
        if !self.services.served {
            self.sync();
            return;
        }
        self.attachments.follow_interfaces(&mut self.shared);
        self.apply_node();
        // The plans of services depend on the node's addresses, which decide about source ranges.
        if self.services.syncer.has_changes() {
            self.sync();
        }
    }

    /// Runs once a second: each part of the agent checks what it put into the kernel, and repeats
    /// failed attempts that have no retry time of their own.
    pub(super) fn tick(&mut self) {
        self.stay_in_service();
        let ends = self
            .attachments
            .end_connections(&mut self.shared, &self.services);
        self.growth.observe(&mut self.shared, ends);
        self.attachments.count(&self.shared);
        if self.node.tick(&self.shared, &self.services) {
            self.apply_node();
        }
        if self.services.listed && !self.node.is_applied() {
            self.sync();
        } else if self.services.listed {
            self.attachments.tick(&mut self.shared, &self.services);
        } else {
            self.serve_pinned();
        }
        self.growth.grow(&mut self.shared, &self.services);
        self.attachments
            .repair(&mut self.shared, &mut self.services, false);
        self.report_first();
    }

    /// Has the programs serve for `portolan.abandonedAfter` from now on. Programs that have given
    /// way in an agent's absence begin again only with the services as they are.
    fn stay_in_service(&self) {
        let seconds = self.shared.config.abandoned_after;
        let time = (seconds != 0).then(|| Duration::from_secs(seconds.into()));
        let stored = self.shared.datapath.serve_for(time, self.services.served);
        if let Err(error) = stored {
            tracing::warn!("{}; it is tried again every second", chain(&error));
        }
    }

    pub(super) fn hear_of_foreign(&mut self, answer: &foreign_connections::Answer) {
        self.node.hear_of_foreign(&self.shared, answer);
        self.apply_node();
    }

    /// Copies some more services into the larger maps; after the last one, puts them in use.
    pub(super) fn fill_larger(&mut self) {
        let Some((maps, failed)) = self.growth.fill(&mut self.services.syncer) else {
            return;
        };
        let before = std::mem::replace(&mut self.shared.datapath, maps);
        self.growth.keep(before);
        self.begin_with_maps();
        if failed {
            self.services.syncer.resync();
        }
        // The services that did not fit into the smaller maps are among those that wait for a
        // retry.
        self.try_again();
    }

    /// Forgets what was stored in the previous maps and attached with them, and begins with the
    /// present ones. Called at the start of the agent and when larger maps replace the maps in use.
    pub(super) fn begin_with_maps(&mut self) {
        let config = &self.shared.config;
        self.shared.datapath.set_idle_times(config.idle_times);
        let pins = &config.pin_directory;
        self.attachments
            .begin_with_maps(config, [pins::layout_dir(pins), pins::links_dir(pins)]);
        self.node.begin_with_maps();
        self.follow_program_log();
    }

    /// Begins to copy the log lines of the loaded eBPF programs, and ends copying those of the
    /// previous programs.
    pub(super) fn follow_program_log(&mut self) {
        let every = if self.shared.config.log_packets {
            PACKET_LINES
        } else {
            SWEEP
        };
        if let Some(before) = self.program_log.take() {
            before.abort();
        }
        match self.shared.datapath.program_log() {
            Ok(log) => self.program_log = Some(tokio::spawn(log.follow(every))),
            Err(error) => tracing::warn!("{}", chain(&error)),
        }
    }

    /// Makes XDP look up again all next hops that it has stored.
    pub(super) fn routes_have_changed(&mut self) {
        if let Err(error) = self.shared.datapath.begin_route_epoch() {
            tracing::warn!("{}; next hops are asked for each second", chain(&error));
        }
    }
}
