// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How full the maps are, and their growth: idle flows are removed, and nearly full maps are
//! replaced by larger ones, up to a limit of memory, and flow tables that a day has hardly used by
//! smaller ones. `sizes` decides. Another thread makes the new maps, which are called larger here;
//! the agent's loop fills them and puts them in use. A part of `agent`.

mod growing;
mod map_usage;
mod sizes;

use std::time::Duration;

use control::{
    causes::chain,
    object::Warning,
    syncer::{Synced, Syncer},
    warnings::Topic,
};
use datapath::{Capacities, Datapath, DatapathError, FlowCounts, Occupancy};
use tokio::{sync::mpsc, task::spawn_blocking, time::Instant};

pub use self::sizes::{Decision, ServiceCounts, decide};
use self::{
    growing::{Both, Filling, Growing},
    map_usage::Counting,
    sizes::shrink,
};
use super::{agent::Shared, services::Services};

/// The pause before the next attempt after larger maps could not be made.
const PAUSE: Duration = Duration::from_secs(60);
/// Pause between two walks through nearly empty flow tables: shorter than every idle time, and long
/// enough that the agent uses little processor time on a quiet node.
const REST: Duration = Duration::from_secs(20);
/// How long a grown flow table is nearly empty before it shrinks.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// How full the maps are, and how far their replacement by larger ones is.
pub(super) struct Growth {
    growing: Growing,
    /// The sizes of larger maps that were given up because a service of the maps in use did not
    /// fit.
    abandoned: Option<Capacities>,
    grown: mpsc::Sender<Result<Datapath, DatapathError>>,
    flows: Occupancy,
    /// The most entries that IPv4's and IPv6's flow tables have needed since the day began.
    peaks: [u32; 2],
    day_ends: Instant,
    /// When to continue the walk through the flow tables, which removes idle flows.
    walk_at: Instant,
    counting: Counting,
}

impl Growth {
    pub(super) fn new(grown: mpsc::Sender<Result<Datapath, DatapathError>>) -> Self {
        Self {
            growing: Growing::No,
            abandoned: None,
            grown,
            flows: Occupancy::default(),
            peaks: [0; 2],
            day_ends: Instant::now() + DAY,
            walk_at: Instant::now(),
            counting: Counting::default(),
        }
    }

    /// True while larger maps are being made or filled.
    pub(super) fn is_under_way(&self) -> bool {
        matches!(self.growing, Growing::Made | Growing::Filled(_))
    }

    /// True while larger maps are being filled.
    pub(super) fn is_filling(&self) -> bool {
        matches!(self.growing, Growing::Filled(_))
    }

    /// Writes services that are dirty or wait into the maps in use, and into those that are being
    /// filled or taken over from.
    pub(super) fn sync(&mut self, syncer: &mut Syncer, datapath: &mut Datapath) -> Synced {
        match &mut self.growing {
            Growing::Filled(filling) => syncer.sync(&mut Both(datapath, &mut **filling)),
            Growing::TakesOver(before) => syncer.sync(&mut Both(datapath, &mut **before)),
            _ => syncer.sync(datapath),
        }
    }

    /// Writes changes of services into `before`, too, until the maps in use have taken over from
    /// it. The walk through the flow tables begins anew.
    pub(super) fn keep(&mut self, before: Datapath) {
        self.walk_at = Instant::now();
        self.growing = Growing::TakesOver(Box::new(before));
    }

    /// Removes idle flows, and updates the metrics of how full the maps are. Called once a second.
    /// `ends`: true if there are connections to end, so that the walk must not rest.
    pub(super) fn observe(&mut self, shared: &mut Shared, ends: bool) {
        shared.datapath.collect();
        if shared.datapath.predecessors().is_none() && matches!(self.growing, Growing::TakesOver(_))
        {
            // The smaller maps that were taken over from are closed.
            self.growing = Growing::No;
        }
        if ends || Instant::now() >= self.walk_at {
            self.walk(shared);
            shared
                .metrics
                .state
                .count_ended(shared.datapath.take_ended());
        }
        let state = &shared.metrics.state;
        state.set_fill(&self.flows, &shared.datapath.fill());
        let pins = &shared.config.pin_directory;
        self.counting.go_on(Instant::now(), pins, &shared.metrics);
    }

    fn walk(&mut self, shared: &mut Shared) {
        let warnings = match shared.datapath.sweep() {
            Ok(flows) => {
                if flows.complete && flows.is_nearly_empty() {
                    self.walk_at = Instant::now() + REST;
                }
                self.flows = flows;
                let [v4, v6] = self.peaks;
                self.peaks = [v4.max(flows.v4.needed()), v6.max(flows.v6.needed())];
                map_usage::nearly_full(&flows).collect()
            }
            Err(error) => vec![Warning {
                object: "flow tables".to_owned(),
                reason: format!(
                    "idle flows could not be removed: {}; it is tried again every second",
                    chain(&error),
                ),
            }],
        };
        shared.warnings.replace(Topic::Flows, warnings);
    }

    /// Starts to make larger maps if some are nearly full and the memory limit allows it. Once a
    /// day, starts to make smaller ones if flow tables were nearly empty.
    pub(super) fn grow(&mut self, shared: &mut Shared, services: &Services) {
        // Larger maps get the services that are known, and no others.
        let is_settled =
            services.listed && services.syncer.complete && shared.datapath.predecessors().is_none();
        if !is_settled || !self.growing.is_possible(Instant::now()) {
            return;
        }
        let now = shared.datapath.capacities();
        if Instant::now() >= self.day_ends {
            self.day_ends = Instant::now() + DAY;
            let [v4, v6] = std::mem::take(&mut self.peaks);
            let (first, held) = (shared.options.capacities, &self.flows);
            let smaller = Capacities {
                flows: shrink(now.flows, first.flows, v4, held.v4.entries),
                flows_v6: shrink(now.flows_v6, first.flows_v6, v6, held.v6.entries),
                ..now
            };
            if smaller != now {
                let why = "flow tables were nearly empty for a day, smaller ones are made";
                self.make(shared, smaller, why);
                return;
            }
        }
        let mut fills = shared.datapath.fill();
        fills.extend(self.flows.fills(FlowCounts::needed));
        fills.extend(self.counting.take_sockets());
        let limits = shared.config.map_memory_limits();
        let counts = ServiceCounts {
            known: services.syncer.state.served_count(),
            held: shared.datapath.service_count(),
        };
        let fault = match decide(now, &fills, &services.syncer.full_maps(), counts, limits) {
            Decision::Enough => None,
            Decision::Grow(larger) => {
                self.make(shared, larger, "maps are nearly full, larger ones are made");
                return;
            }
            Decision::Limited(map, needed) => Some(Warning {
                object: format!("map {map}"),
                reason: format!(
                    "it is nearly full and cannot grow: with larger maps beside the present ones, {} MiB would be in use, and portolan.maps.memory allows {} MiB; raise it, or lower the number of services, endpoints or connections on this node",
                    needed >> 20,
                    limits[0] >> 20,
                ),
            }),
        };
        shared
            .warnings
            .replace(Topic::Growth, Vec::from_iter(fault));
    }

    fn make(&mut self, shared: &mut Shared, capacities: Capacities, why: &str) {
        self.growing = Growing::Made;
        tracing::info!(?capacities, "{why}");
        let growth = shared.datapath.growth();
        let mut options = shared.options.clone();
        options.capacities = capacities;
        let results = self.grown.clone();
        spawn_blocking(move || {
            // Sending cannot fail: the receiver exists as long as the agent.
            _ = results.blocking_send(growth(&options));
        });
    }

    /// Begins to fill the larger maps that another thread has made; `grown` is an error if it could
    /// not make them.
    pub(super) fn use_larger(
        &mut self,
        shared: &Shared,
        services: &Services,
        grown: Result<Datapath, DatapathError>,
    ) {
        let larger = match grown {
            Ok(larger) => larger,
            Err(error) => {
                self.growing = Growing::Failed(Instant::now() + PAUSE);
                let warning = Warning {
                    object: "maps".to_owned(),
                    reason: format!(
                        "those of other sizes that are needed could not be made: {}; it is tried again",
                        chain(&error),
                    ),
                };
                shared.warnings.replace(Topic::Growth, vec![warning]);
                return;
            }
        };
        shared.warnings.replace(Topic::Growth, Vec::new());
        shared.metrics.state.growths.inc();
        let (held, others) = services.syncer.names(&shared.datapath.held_services());
        let filling = Filling::new(larger, held, others);
        self.growing = Growing::Filled(Box::new(filling));
    }

    /// Stores some more services in the larger maps. Returns these maps after the last service,
    /// with true if some services could not be stored in them; None before. If a service of the
    /// maps in use does not fit, gives the larger maps up, so that others are made. Maps with the
    /// sizes that were given up last are returned anyway.
    pub(super) fn fill(&mut self, syncer: &mut Syncer) -> Option<(Datapath, bool)> {
        if let Growing::Filled(filling) = &mut self.growing
            && filling.go_on(syncer)
        {
            return None;
        }
        let Growing::Filled(filled) = std::mem::replace(&mut self.growing, Growing::No) else {
            return None;
        };
        let Filling {
            maps,
            failed,
            lacks_held,
            ..
        } = *filled;
        // Maps of these sizes may have been given up before, and larger ones cannot be made at
        // once: services that do not fit wait until the maps grow again.
        if lacks_held && self.abandoned != Some(maps.capacities()) {
            self.abandoned = Some(maps.capacities());
            tracing::info!(
                "the larger maps have no room for all that is served now, others are made"
            );
            if let Err(error) = maps.abandon() {
                // These maps stay for now; the next larger maps take over from them as well.
                tracing::warn!("{}", chain(&error));
            }
            return None;
        }
        self.abandoned = None;
        Some((maps, failed))
    }
}
