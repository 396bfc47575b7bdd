// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Maps that are nearly full are succeeded by larger ones, up to a limit of memory. The decision is pure; larger maps are made on another
//! thread, filled and taken over to by the loop. Called by `agent` and `steps`.

use std::{collections::BTreeSet, time::Duration};

use tokio::{task::spawn_blocking, time::Instant};

use super::{
    attachments::InterfaceAttachments, beside::Beside, hooks::SocketHooks, repairs::Repairs,
    steps::Agent,
};
use crate::{
    causes::chain,
    datapath::{
        Capacities, Datapath, DatapathError, Fill, FlowCounts,
        maps::{memory_of, pins},
    },
    object::Warning,
    warnings::Topic,
};

/// The pause after larger maps could not be made.
const PAUSE: Duration = Duration::from_secs(60);

/// What to do about maps that are nearly full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Decision {
    /// There is room.
    Enough,
    Grow(Capacities),
    /// This map should grow, but the limit would be passed: the bytes that larger maps would take.
    Limited(&'static str, u64),
}

/// Doubles the maps that are three quarters full, and those that have refused something. While one generation takes over from the
/// other there are both, so both count.
fn decide(
    now: Capacities,
    fills: &[Fill],
    refused: &BTreeSet<&'static str>,
    limit: u64,
) -> Decision {
    let full = fills.iter().filter(|fill| fill.is_nearly_full());
    let full = full.map(|fill| fill.map);
    let mut larger = now;
    let mut first = None;
    for map in full.chain(refused.iter().copied()) {
        let mut before = now;
        let (Some(before), Some(capacity)) = (before.of(map), larger.of(map)) else {
            continue;
        };
        // Maps of both families have one size.
        if *capacity == *before {
            *capacity = capacity.saturating_mul(2);
        }
        first.get_or_insert(map);
    }
    let needed = memory_of(&now) + memory_of(&larger);
    match first {
        None => Decision::Enough,
        Some(map) if needed > limit => Decision::Limited(map, needed),
        Some(_) => Decision::Grow(larger),
    }
}

impl Agent {
    /// Has larger maps made if some are nearly full.
    pub(super) fn grow(&mut self) {
        let is_settled = self.served && self.datapath.predecessors().is_none();
        if !is_settled || self.growing.is_some_and(|until| Instant::now() < until) {
            return;
        }
        let mut fills = self.datapath.fill();
        fills.extend(self.flows.fills(FlowCounts::needed));
        let now = self.datapath.capacities();
        let limit = self.config.map_memory_limit();
        let fault = match decide(now, &fills, &self.syncer.full_maps(), limit) {
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
        // Until the result is there.
        self.growing = Some(Instant::now() + 10 * PAUSE);
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

    /// Goes on with larger maps: fills them, and takes over to them.
    pub(super) fn use_larger(&mut self, grown: Result<Datapath, DatapathError>) {
        let larger = match grown {
            Ok(larger) => larger,
            Err(error) => {
                self.growing = Some(Instant::now() + PAUSE);
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
        self.growing = None;
        self.warnings.replace(Topic::Growth, Vec::new());
        self.metrics.count_growth();
        let held = self.datapath.held_services();
        self.datapath = larger;
        self.begin_with_maps();
        self.syncer.resync(held);
        self.sync();
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

#[cfg(test)]
mod tests {
    use super::*;
    use proxy_common::maps;

    fn fill(map: &'static str, entries: u32, capacity: u32) -> Fill {
        Fill {
            map,
            entries,
            capacity,
        }
    }

    #[test]
    fn a_map_that_is_three_quarters_full_doubles_once() {
        let now = Capacities::default();
        let enough = [fill(maps::FRONTENDS_V4, 74, 100)];
        let none = BTreeSet::new();
        assert_eq!(decide(now, &enough, &none, u64::MAX), Decision::Enough);
        let full = [
            fill(maps::FRONTENDS_V4, 75, 100),
            fill(maps::FRONTENDS_V6, 100, 100),
        ];
        let larger = Capacities {
            frontends: 2 * now.frontends,
            ..now
        };
        let decided = decide(now, &full, &none, u64::MAX);
        assert_eq!(decided, Decision::Grow(larger));
    }

    #[test]
    fn a_flood_makes_no_flow_table_grow_but_ended_connections_count_beside_living_ones() {
        let counts = |kept, entries| FlowCounts {
            capacity: 4000,
            kept,
            entries,
            ..FlowCounts::default()
        };
        for (kept, entries, needed) in [(0, 4000, 0), (100, 4000, 150), (3000, 3100, 3100)] {
            assert_eq!(counts(kept, entries).needed(), needed);
        }
        // Half of a full table is kept.
        assert_eq!(counts(2000, 4000).needed(), 3000);
    }

    #[test]
    fn what_was_refused_counts_even_if_there_is_room() {
        let now = Capacities::default();
        let refused = BTreeSet::from([maps::SLOTS]);
        let larger = Capacities {
            slots: 2 * now.slots,
            ..now
        };
        let decided = decide(now, &[], &refused, u64::MAX);
        assert_eq!(decided, Decision::Grow(larger));
    }

    #[test]
    fn the_limit_holds_for_both_generations() {
        let now = Capacities::default();
        let refused = BTreeSet::from([maps::FLOWS_V6]);
        let larger = Capacities {
            flows: 2 * now.flows,
            ..now
        };
        let needed = memory_of(&now) + memory_of(&larger);
        let at_limit = decide(now, &[], &refused, needed);
        assert_eq!(at_limit, Decision::Grow(larger));
        let below = decide(now, &[], &refused, needed - 1);
        assert_eq!(below, Decision::Limited(maps::FLOWS_V6, needed));
    }
}
