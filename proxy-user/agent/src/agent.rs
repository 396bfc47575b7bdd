// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The agent's parts, and the steps that concern more than one of them: the first sync, a new list
//! of interfaces, every second. Driven by the loop in `run`.

use config::{Config, ConfigFile};
use control::{causes::chain, change::Batch, warnings::Warnings};
use datapath::{Datapath, DatapathError, Options, maps::pins};
use linux::interfaces::Interface;
use tokio::{task::JoinHandle, time::Instant};

use super::{
    PACKET_LINES, SWEEP,
    attachments::Attachments,
    growth::{Filled, Growth},
    node::{Node, foreign_connections},
    services::{Progress, Services, Turn},
};
use crate::{
    metrics::Metrics,
    server::{configz::Configz, health::Health},
};

/// A sync of at least this many plans leaves much unused heap.
const MANY_PLANS: usize = 1_000;

/// What every part of the agent reads or writes.
pub(super) struct Shared {
    pub(super) config: Config,
    pub(super) node_name: String,
    /// How the maps were opened.
    pub(super) options: Options,
    pub(super) datapath: Datapath,
    pub(super) interfaces: Vec<Interface>,
    pub(super) health: Health,
    pub(super) metrics: Metrics,
    pub(super) warnings: Warnings,
}

/// The agent's parts.
pub(super) struct Agent {
    pub(super) shared: Shared,
    /// `None` if there are only flags.
    pub(super) file: Option<ConfigFile>,
    pub(super) configz: Configz,
    pub(super) services: Services,
    pub(super) attachments: Attachments,
    pub(super) node: Node,
    pub(super) growth: Growth,
    /// Copies the kernel programs' lines into the log.
    pub(super) program_log: Option<JoinHandle<()>>,
}

impl Agent {
    /// Takes a batch of changes; [`Self::sync`] applies it.
    pub(super) fn take(&mut self, batch: Batch) {
        let concerns_node = self.services.take(&self.shared, batch);
        if self.services.served && concerns_node {
            self.apply_node();
        } else {
            self.node.is_outdated = true;
        }
    }

    /// Applies dirty services; if they are many, [`Self::go_on`] applies the rest. Nothing else
    /// delays a change: what the node and its interfaces need is checked every second. The first
    /// sync attaches programs before it stores services: on a node that another proxy has served so
    /// far, the programs for replies are then everywhere before a connection is translated.
    pub(super) fn sync(&mut self) {
        if !self.services.listed {
            self.serve_pinned();
            return;
        }
        self.services.begin();
        if !self.services.served {
            self.apply_node();
            self.attach();
        } else if !self.node.is_applied() {
            self.apply_node();
        }
        self.go_on();
    }

    /// Applies services that are dirty or wait.
    pub(super) fn go_on(&mut self) {
        match self.services.go_on(&mut self.shared, &mut self.growth) {
            Turn::More => {}
            Turn::Refused => self
                .growth
                .grow(&mut self.shared, &self.services, &self.node),
            Turn::Complete(progress) => self.all_applied(&progress),
        }
    }

    fn all_applied(&mut self, progress: &Progress) {
        let first = !std::mem::replace(&mut self.services.served, true);
        self.node.look_for_foreign(&self.shared, &self.growth);
        if first {
            self.apply_node();
        }
        self.attachments.take_over(&mut self.shared, &self.services);
        if first || progress.planned >= MANY_PLANS {
            linux::trim_heap();
        }
        let interfaces = first.then(|| self.attachments.interface_count());
        self.services.report(&self.shared, progress, interfaces);
    }

    pub(super) fn try_again(&mut self) {
        self.services.syncer.retry();
        self.sync();
    }

    /// Attaches before the lists arrive if the pinned maps contain services: these are served as an
    /// earlier run has left them, with its settings and addresses.
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
        // Plans depend on the node's addresses, which decide about source ranges.
        if self.services.syncer.has_changes() {
            self.sync();
        }
    }

    /// Runs once a second: every part checks its objects, and tries again what has no retry time of
    /// its own.
    pub(super) fn tick(&mut self) {
        self.growth.observe(&mut self.shared);
        self.attachments.count(&self.shared);
        if self.node.tick(&self.shared, &self.services, &self.growth) {
            self.apply_node();
        }
        if self.services.listed && !self.node.is_applied() {
            self.sync();
        } else if self.services.listed {
            self.attachments.tick(&mut self.shared, &self.services);
        } else {
            self.serve_pinned();
        }
        self.growth
            .grow(&mut self.shared, &self.services, &self.node);
        self.repair(false);
    }

    /// Checks whether everything in the kernel is as it was put there, and repairs it. `news`: a
    /// pin was removed.
    pub(super) fn repair(&mut self, news: bool) {
        self.attachments
            .repair(&mut self.shared, &mut self.services, news);
    }

    pub(super) fn hear_of_foreign(&mut self, answer: &foreign_connections::Answer) {
        self.node.hear_of_foreign(&self.shared, answer);
        self.apply_node();
    }

    /// Begins to fill larger maps.
    pub(super) fn use_larger(&mut self, grown: Result<Datapath, DatapathError>) {
        self.growth.use_larger(&self.shared, &self.services, grown);
    }

    /// Fills larger maps with some more services; uses these maps after the last one.
    pub(super) fn fill_larger(&mut self) {
        let Some(Filled { maps, failed }) = self.growth.fill(&mut self.services.syncer) else {
            return;
        };
        self.shared.datapath = maps;
        self.begin_with_maps();
        if failed {
            self.services.syncer.resync();
        }
        // The services that did not fit into the smaller maps are among these.
        self.try_again();
    }

    /// Forgets what was stored in the previous maps and what was attached with them, and begins
    /// with the present ones: at the start, and with larger maps.
    pub(super) fn begin_with_maps(&mut self) {
        let config = &self.shared.config;
        self.shared.datapath.set_idle_times(config.idle_times);
        let pins = &config.pin_directory;
        self.attachments
            .begin_with_maps(config, [pins::layout_dir(pins), pins::links_dir(pins)]);
        self.node.begin_with_maps();
        self.growth.begin_with_maps(Instant::now());
        self.follow_program_log();
    }

    /// Copies the log lines of the loaded programs, and no longer those of the previous ones.
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

    /// Makes XDP look up its next hops again.
    pub(super) fn routes_have_changed(&mut self) {
        if let Err(error) = self.shared.datapath.begin_route_epoch() {
            tracing::warn!("{}; next hops are asked for each second", chain(&error));
        }
    }
}
