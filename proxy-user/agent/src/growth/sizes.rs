// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Decides whether maps should become larger or smaller, and by how much. Pure; called by `growth`.

use std::collections::BTreeSet;

use control::apply::Fill;
use datapath::{
    Capacities,
    maps::{flow_memory_of, memory_of},
};
use proxy_common::maps::{FLOW_SLOTS_V4, FLOW_SLOTS_V6, SOCKETS_V4, SOCKETS_V6};

/// What to do about maps that are nearly full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// No map is nearly full.
    Enough,
    Grow(Capacities),
    /// The map with this name should grow, but the memory limit forbids it. The number is the bytes
    /// that old and larger maps need together.
    Limited(&'static str, u64),
}

/// The number of services that must be served (`known`), and of those that the maps contain
/// (`held`).
#[derive(Clone, Copy)]
pub struct ServiceCounts {
    pub known: usize,
    pub held: usize,
}

impl ServiceCounts {
    /// Estimates how many entries a map will have with all known services, from its `entries` with
    /// the services that it contains now.
    fn expected(self, entries: u64) -> u64 {
        let held = self.held.max(1) as u64;
        entries * held.max(self.known as u64) / held
    }
}

/// Returns the larger sizes, and the name of the first map that must grow. A map must grow if it is
/// three quarters full, or would be with every known service, or has refused an entry. It doubles,
/// or grows up to `most` times if twice is not enough. None if no map must grow.
fn enlarge(
    now: Capacities,
    fills: &[Fill],
    refused: &BTreeSet<&'static str>,
    services: ServiceCounts,
    most: u64,
    flow_limit: u64,
) -> Option<(&'static str, Capacities)> {
    let mut larger = now;
    let mut first = None;
    for fill in fills {
        let (mut before, mut with) = (now, larger);
        let is_refused = refused.contains(fill.map);
        let (Some(before), Some(capacity)) = (before.of(fill.map), with.of(fill.map)) else {
            continue;
        };
        let before = u64::from(*before);
        let entries = match fill.map {
            FLOW_SLOTS_V4 | FLOW_SLOTS_V6 | SOCKETS_V4 | SOCKETS_V6 => u64::from(fill.entries),
            _ if is_refused => services.expected(before),
            _ => services.expected(u64::from(fill.entries)),
        };
        if !is_refused && entries * 4 < before * 3 {
            continue;
        }
        let needed = (entries * 4).div_ceil(before * 3).next_power_of_two();
        // But for flows, IPv4's map and IPv6's have one common size.
        let size = before * needed.clamp(2, most);
        *capacity = (*capacity).max(size.min(u64::from(u32::MAX / 2 + 1)) as u32);
        let is_of_flows = [FLOW_SLOTS_V4, FLOW_SLOTS_V6].contains(&fill.map);
        if is_of_flows && flow_memory_of(&with) > flow_limit {
            // That it is nearly full is a warning by itself.
            continue;
        }
        larger = with;
        first.get_or_insert(fill.map);
    }
    first.map(|first| (first, larger))
}

/// Decides from how full the maps are. The first limit holds for the old and the larger maps
/// together: both exist while one takes over from the other. The second holds for the larger flow
/// tables.
pub fn decide(
    now: Capacities,
    fills: &[Fill],
    refused: &BTreeSet<&'static str>,
    services: ServiceCounts,
    [limit, of_flows]: [u64; 2],
) -> Decision {
    let mut limited = Decision::Enough;
    // If memory does not suffice for what is needed, try again with twice the size at most, and
    // then without the flow tables: flows hinder no service.
    for (most, of_flows) in [(64, of_flows), (2, of_flows), (64, 0), (2, 0)] {
        let enlarged = enlarge(now, fills, refused, services, most, of_flows);
        let Some((first, larger)) = enlarged else {
            break;
        };
        let needed = memory_of(&now) + memory_of(&larger);
        if needed <= limit {
            return Decision::Grow(larger);
        }
        limited = Decision::Limited(first, needed);
    }
    limited
}

/// Returns the size of a flow table from its present and its `first` one, and from the most entries
/// that a day has needed, its `peak`. If they are less than an eighth, it becomes four times as
/// many, and twice the `entries` of now, so that all of these find room.
pub(super) fn shrink(now: u32, first: u32, peak: u32, entries: u32) -> u32 {
    let [size, first, peak, entries] = [now, first, peak, entries].map(u64::from);
    let wanted = (4 * peak).max(2 * entries).max(first).next_power_of_two();
    if 8 * peak < size && wanted < size {
        wanted as u32
    } else {
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proxy_common::maps;

    /// A thousand services, all of them served.
    const ALL_SERVED: ServiceCounts = ServiceCounts {
        known: 1000,
        held: 1000,
    };

    #[test]
    fn a_map_that_is_three_quarters_full_doubles_once() {
        let now = Capacities::default();
        let size = now.frontends;
        let none = BTreeSet::new();
        let decided = |fills: &[Fill]| decide(now, fills, &none, ALL_SERVED, [u64::MAX; 2]);
        let enough = Fill::new(maps::FRONTENDS_V4, size / 4 * 3 - 1, size);
        assert_eq!(decided(&[enough]), Decision::Enough);
        let full = Fill::new(maps::FRONTENDS_V4, size / 4 * 3, size);
        let larger = Capacities {
            frontends: 2 * size,
            ..now
        };
        let both = [full, Fill::new(maps::FRONTENDS_V6, size, size)];
        assert_eq!(decided(&both), Decision::Grow(larger));
    }

    #[test]
    fn maps_grow_at_once_to_what_all_services_need() {
        let now = Capacities::default();
        let services = ServiceCounts {
            known: 100_000,
            held: 25_000,
        };
        let fills = [
            Fill::new(maps::BACKENDS_V4, now.backends - 10, now.backends),
            Fill::new(maps::BACKENDS_V6, 0, now.backends),
            Fill::new(maps::SLOTS, now.slots / 4, now.slots),
            Fill::new(maps::FRONTENDS_V4, now.frontends / 8, now.frontends),
            Fill::new(FLOW_SLOTS_V4, now.flows / 2, now.flows),
            Fill::new(SOCKETS_V6, now.sockets / 2, now.sockets),
        ];
        let refused = BTreeSet::from([maps::BACKENDS_V4]);
        let [eightfold, double] = [8, 2].map(|times| Capacities {
            backends: times * now.backends,
            slots: 2 * now.slots,
            ..now
        });
        // In the second case there is memory for twice the size only.
        let memory = memory_of(&now) + memory_of(&double);
        for (limit, larger) in [(u64::MAX, eightfold), (memory, double)] {
            let decided = decide(now, &fills, &refused, services, [limit; 2]);
            assert_eq!(decided, Decision::Grow(larger));
        }
    }

    #[test]
    fn flows_that_cannot_grow_hinder_no_service() {
        let now = Capacities::default();
        let larger = Capacities {
            frontends: 2 * now.frontends,
            ..now
        };
        let flows = Fill::new(FLOW_SLOTS_V4, now.flows, now.flows);
        let fills = [
            flows,
            Fill::new(maps::FRONTENDS_V4, now.frontends, now.frontends),
        ];
        let limits = [memory_of(&now) + memory_of(&larger), u64::MAX];
        let decided = decide(now, &fills, &BTreeSet::new(), ALL_SERVED, limits);
        assert_eq!(decided, Decision::Grow(larger));
    }

    #[test]
    fn grown_flow_tables_shrink_to_four_times_what_a_day_has_needed() {
        for (peak, entries, expected) in [
            (0, 0, 1024),
            (8191, 0, 32_768),
            (8192, 0, 65_536),
            (100, 5000, 16_384),
            (100, 40_000, 65_536),
        ] {
            assert_eq!(shrink(65_536, 1000, peak, entries), expected, "{peak}");
        }
        assert_eq!(shrink(1024, 1000, 0, 0), 1024, "as the maps are made");
    }

    /// The map has refused an entry, so it grows even though it has room.
    #[test]
    fn the_memory_limit_covers_the_old_and_the_new_maps_together() {
        let now = Capacities::default();
        let refused = BTreeSet::from([maps::SLOTS]);
        let larger = Capacities {
            slots: 2 * now.slots,
            ..now
        };
        let needed = memory_of(&now) + memory_of(&larger);
        let fills = [Fill::new(maps::SLOTS, 0, now.slots)];
        let at_limit = decide(now, &fills, &refused, ALL_SERVED, [needed, 0]);
        assert_eq!(at_limit, Decision::Grow(larger));
        let below = decide(now, &fills, &refused, ALL_SERVED, [needed - 1, 0]);
        assert_eq!(below, Decision::Limited(maps::SLOTS, needed));
    }

    #[test]
    fn flow_tables_have_a_limit_of_their_own_that_hinders_no_other_map() {
        let (now, none) = (Capacities::default(), BTreeSet::new());
        let mut fills = vec![Fill::new(FLOW_SLOTS_V4, now.flows, now.flows)];
        let mut larger = now;
        larger.flows *= 2;
        let limit = flow_memory_of(&larger);
        let limits = |of_flows| [u64::MAX, of_flows];
        let decided = |fills: &[Fill], limits| decide(now, fills, &none, ALL_SERVED, limits);
        assert_eq!(decided(&fills, limits(limit)), Decision::Grow(larger));
        assert_eq!(decided(&fills, limits(limit - 1)), Decision::Enough);
        fills.push(Fill::new(maps::SLOTS, now.slots, now.slots));
        let (slots, decided) = (2 * now.slots, decided(&fills, limits(limit - 1)));
        assert_eq!(decided, Decision::Grow(Capacities { slots, ..now }));
    }
}
