// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How far larger maps are, and how they are filled while changes of services go into them and into
//! the maps in use. Driven by `growth`.

use std::collections::{BTreeSet, HashSet, VecDeque};

use control::{
    apply::ApplyResult,
    object::ObjectName,
    plan::ServicePlan,
    syncer::{Kernel, Syncer, turns},
};
use datapath::Datapath;
use tokio::time::Instant;

/// How far the replacement of the maps by larger ones is.
pub(super) enum Growing {
    No,
    /// Another thread is making the larger maps.
    Made,
    Filled(Box<Filling>),
    /// The larger maps are in use, and take over from these smaller ones. Their programs still see
    /// packets first, so these maps get every change, too.
    TakesOver(Box<Datapath>),
    /// The larger maps could not be made; the next attempt comes after this time.
    Failed(Instant),
}

impl Growing {
    /// True if the agent may start to make larger maps now.
    pub(super) fn is_possible(&self, now: Instant) -> bool {
        match self {
            Self::No => true,
            Self::Failed(until) => *until <= now,
            Self::Made | Self::Filled(_) | Self::TakesOver(_) => false,
        }
    }
}

/// Larger maps that are being filled with services, while others are in use.
pub(super) struct Filling<K = Datapath> {
    pub(super) maps: K,
    /// Services of the maps in use that are still missing in `maps`. They are stored first, and may
    /// use the reserve that new services must leave free: they may have used it in the old maps.
    held: VecDeque<ObjectName>,
    /// Other services that are still missing in `maps`.
    rest: VecDeque<ObjectName>,
    /// The services that are in `maps` already: a change of one of them is stored at once.
    stored: HashSet<ObjectName>,
    /// Services that have changed before they were stored in `maps`. They are stored last: they may
    /// be new, and would take the space of those in `rest`.
    later: BTreeSet<ObjectName>,
    /// True if some services could not be stored in `maps`.
    pub(super) failed: bool,
    /// True if one of the services that could not be stored is served by the maps in use.
    pub(super) lacks_held: bool,
}

impl<K: Kernel> Filling<K> {
    pub(super) fn new(maps: K, held: Vec<ObjectName>, rest: Vec<ObjectName>) -> Self {
        Self {
            maps,
            held: held.into(),
            rest: rest.into(),
            stored: HashSet::new(),
            later: BTreeSet::new(),
            failed: false,
            lacks_held: false,
        }
    }

    /// Stores some more services in the larger maps; false if all are stored.
    pub(super) fn go_on(&mut self, syncer: &mut Syncer) -> bool {
        let (services, may_exist) = if !self.held.is_empty() {
            (&mut self.held, true)
        } else {
            if self.rest.is_empty() {
                self.rest.extend(std::mem::take(&mut self.later));
            }
            (&mut self.rest, false)
        };
        let turn = services.drain(..turns::LENGTH.min(services.len()));
        let turn = Vec::from_iter(turn);
        if turn.is_empty() {
            return false;
        }
        let plans = syncer.plans(&turn);
        let result = if may_exist {
            self.maps.restore(&plans)
        } else {
            self.maps.apply(&plans)
        };
        let failed = !result.failures.is_empty();
        self.failed |= failed;
        self.lacks_held |= failed && may_exist;
        self.stored.extend(turn);
        true
    }
}

impl<K: Kernel> Kernel for Filling<K> {
    /// Stores changes of services that the larger maps already contain; remembers other changed
    /// services for later.
    fn apply(&mut self, changes: &[(ObjectName, ServicePlan)]) -> ApplyResult {
        let mut followed = Vec::new();
        for change in changes {
            if self.stored.contains(&change.0) {
                followed.push(change.clone());
            } else {
                self.later.insert(change.0.clone());
            }
        }
        let result = self.maps.apply(&followed);
        self.failed |= !result.failures.is_empty();
        result
    }
    fn prune(&mut self, known: &HashSet<ObjectName>) -> ApplyResult {
        let result = self.maps.prune(known);
        self.failed |= !result.failures.is_empty();
        result
    }
}

/// The maps in use, and others that changes go into as well.
pub(super) struct Both<'a, K, F>(pub(super) &'a mut K, pub(super) &'a mut F);

impl<K: Kernel, F: Kernel> Kernel for Both<'_, K, F> {
    /// Returns only failures of the maps in use: a retry applies the change to both again. What has
    /// no room in smaller maps is served once the larger ones have taken over.
    fn apply(&mut self, changes: &[(ObjectName, ServicePlan)]) -> ApplyResult {
        let result = self.0.apply(changes);
        _ = self.1.apply(changes);
        result
    }
    fn prune(&mut self, known: &HashSet<ObjectName>) -> ApplyResult {
        let result = self.0.prune(known);
        _ = self.1.prune(known);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::{testing::full, warnings::Warnings};

    const RESERVE: usize = 5;

    /// Test maps with space for `room` services.
    #[derive(Debug)]
    struct Maps {
        room: usize,
        held: BTreeSet<ObjectName>,
    }

    impl Kernel for Maps {
        fn apply(&mut self, changes: &[(ObjectName, ServicePlan)]) -> ApplyResult {
            self.store(changes, self.room - RESERVE)
        }
        fn restore(&mut self, changes: &[(ObjectName, ServicePlan)]) -> ApplyResult {
            self.store(changes, self.room)
        }
        fn prune(&mut self, _: &HashSet<ObjectName>) -> ApplyResult {
            ApplyResult::default()
        }
    }

    fn maps(room: usize) -> Maps {
        let held = BTreeSet::new();
        Maps { room, held }
    }

    impl Maps {
        fn store(&mut self, changes: &[(ObjectName, ServicePlan)], room: usize) -> ApplyResult {
            let mut result = ApplyResult::default();
            for (name, _) in changes {
                if self.held.contains(name) || self.held.len() < room {
                    self.held.insert(name.clone());
                } else {
                    result.failures.push(full(name));
                }
            }
            result
        }
    }

    fn name(number: usize) -> ObjectName {
        ObjectName::new("default", &format!("s{number}"))
    }

    #[test]
    fn while_maps_grow_new_services_take_no_room_of_served_ones() {
        let room = turns::LENGTH + 10;
        let (mut small, mut syncer) = (maps(room), Syncer::new("node-a", Warnings::default()));
        let served: Vec<_> = (0..room).map(name).collect();
        let mut filling = Filling::new(maps(room), served.clone(), Vec::new());
        assert!(filling.go_on(&mut syncer));
        let come: Vec<_> = (room..2 * room)
            .chain([0, room - 1])
            .map(|number| (name(number), ServicePlan::default()))
            .collect();
        Both(&mut small, &mut filling).apply(&come);
        assert!(!filling.failed, "nothing was refused");
        while filling.go_on(&mut syncer) {}
        assert!(!filling.lacks_held, "all that are held fit");
        assert_eq!(filling.maps.held, BTreeSet::from_iter(served));
        assert!(filling.failed, "for the others there is no room");
    }

    #[test]
    fn new_maps_that_cannot_hold_all_served_services_are_too_small() {
        let mut syncer = Syncer::new("node-a", Warnings::default());
        let mut filling = Filling::new(maps(10), (0..11).map(name).collect(), Vec::new());
        while filling.go_on(&mut syncer) {}
        assert!(filling.lacks_held && filling.failed);
    }
}
