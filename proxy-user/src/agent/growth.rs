// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Maps that are nearly full are succeeded by larger ones, up to a limit of memory. `sizes` decides; larger maps are made on another
//! thread, filled and taken over to by the loop. Called by `agent` and `steps`.

use std::time::Duration;

use tokio::{task::spawn_blocking, time::Instant};

use super::{
    attachments::InterfaceAttachments,
    beside::Beside,
    filling::{Filling, Growing},
    hooks::SocketHooks,
    repairs::Repairs,
    sizes::{Decision, Services, decide},
    steps::Agent,
};
use crate::{
    causes::chain,
    datapath::{Capacities, Datapath, DatapathError, FlowCounts, maps::pins},
    object::Warning,
    warnings::Topic,
};

/// The pause after larger maps could not be made.
const PAUSE: Duration = Duration::from_secs(60);

impl Agent {
    /// Has larger maps made if some are nearly full.
    pub(super) fn grow(&mut self) {
        let is_settled =
            self.listed && self.datapath.predecessors().is_none() && !self.foreign.are_imported();
        if !is_settled || !self.growing.is_possible(Instant::now()) {
            return;
        }
        let mut fills = self.datapath.fill();
        fills.extend(self.flows.fills(FlowCounts::needed));
        fills.extend(self.counting.take_sockets());
        let now = self.datapath.capacities();
        let limit = self.config.map_memory_limit();
        let services = Services {
            known: self.syncer.known(),
            held: self.datapath.service_count(),
        };
        let fault = match decide(now, &fills, &self.syncer.full_maps(), services, limit) {
            Decision::Enough => None,
            Decision::Grow(larger) => {
                self.make_larger(larger);
                return;
            }
            Decision::Limited(map, needed) => Some(Warning {
                object: format!("map {map}"),
                reason: format!(
                    "it is nearly full and cannot grow: with larger maps beside the present ones, {} MiB would be in use, and portolan.maps.memory allows {} MiB; raise it, or lower the number of services, endpoints or connections on this node",
                    needed >> 20,
                    limit >> 20,
                ),
            }),
        };
        self.warnings.replace(Topic::Growth, Vec::from_iter(fault));
    }

    fn make_larger(&mut self, capacities: Capacities) {
        self.growing = Growing::Made;
        tracing::info!(?capacities, "maps are nearly full, larger ones are made");
        let growth = self.datapath.growth();
        let mut options = self.options.clone();
        options.capacities = capacities;
        let results = self.grown.clone();
        spawn_blocking(move || {
            // The receiver lives as long as the agent.
            _ = results.blocking_send(growth.open(&options));
        });
    }

    /// Begins to fill larger maps.
    pub(super) fn use_larger(&mut self, grown: Result<Datapath, DatapathError>) {
        let larger = match grown {
            Ok(larger) => larger,
            Err(error) => {
                self.growing = Growing::Failed(Instant::now() + PAUSE);
                let warning = Warning {
                    object: "maps".to_owned(),
                    reason: format!(
                        "they are nearly full, and larger ones could not be made: {}; it is tried again in a minute",
                        chain(&error),
                    ),
                };
                self.warnings.replace(Topic::Growth, vec![warning]);
                return;
            }
        };
        self.warnings.replace(Topic::Growth, Vec::new());
        self.metrics.count_growth();
        let (held, others) = self.syncer.names(&self.datapath.held_services());
        let filling = Filling::new(larger, held, others);
        self.growing = Growing::Filled(Box::new(filling));
    }

    /// Fills larger maps with some more services; goes over to them after the last one.
    pub(super) fn fill_larger(&mut self) {
        if let Growing::Filled(filling) = &mut self.growing
            && filling.go_on(&mut self.syncer)
        {
            return;
        }
        let Growing::Filled(filled) = std::mem::replace(&mut self.growing, Growing::No) else {
            return;
        };
        let (larger, failed) = filled.into_maps();
        self.datapath = larger;
        self.begin_with_maps();
        if failed {
            self.syncer.resync();
        }
        // Those that the smaller maps had no room for are among these.
        self.try_again();
    }

    /// Forgets what was stored in the maps before, or attached over them, and follows these: at the start, and with larger ones.
    pub(super) fn begin_with_maps(&mut self) {
        self.datapath.set_idle_times(self.config.idle_times);
        self.follow_program_log();
        let (root, exceptions) = (&self.config.cgroup_root, &self.config.socket_exceptions);
        self.hooks = SocketHooks::new(root.clone(), exceptions.clone());
        self.attachments = InterfaceAttachments::default();
        self.beside = Beside::default();
        let pins = &self.config.pin_directory;
        self.pin_watch
            .watch([pins::layout_dir(pins), pins::links_dir(pins)]);
        self.repairs = Repairs::default();
        self.applied = None;
        self.walk_at = Instant::now();
    }
}
