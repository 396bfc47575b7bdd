// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Larger maps are filled beside those in use, some services at a time: changes reach packets meanwhile. Begun by `growth`, driven by
//! the loop.

use std::collections::{HashSet, VecDeque};

use tokio::time::Instant;

use super::steps::Agent;
use crate::{
    datapath::{ApplyResult, Datapath},
    object::ObjectName,
    plan::ServicePlan,
    syncer::{Kernel, Synced},
};

/// How far larger maps are.
pub(super) enum Growing {
    No,
    /// They are being made, on another thread.
    Made,
    Filled(Box<Filling>),
    /// They could not be made: until then it is not tried again.
    Failed(Instant),
}

impl Growing {
    /// Whether there will be larger maps soon.
    pub(super) fn is_under_way(&self) -> bool {
        matches!(self, Self::Made | Self::Filled(_))
    }
    pub(super) fn is_filling(&self) -> bool {
        matches!(self, Self::Filled(_))
    }
    /// Whether larger maps may be asked for.
    pub(super) fn is_possible(&self, now: Instant) -> bool {
        match self {
            Self::No => true,
            Self::Failed(until) => *until <= now,
            Self::Made | Self::Filled(_) => false,
        }
    }
}

/// Maps that are being filled.
pub(super) struct Filling {
    datapath: Datapath,
    /// The services that they lack.
    rest: VecDeque<ObjectName>,
    /// Some could not be stored.
    failed: bool,
}

impl Filling {
    pub(super) fn new(datapath: Datapath, services: Vec<ObjectName>) -> Self {
        Self {
            datapath,
            rest: services.into(),
            failed: false,
        }
    }
}

/// The maps in use, and those that are being filled.
struct Both<'a>(&'a mut Datapath, &'a mut Filling);

impl Kernel for Both<'_> {
    /// What the maps in use refuse is tried again with the others.
    fn apply(&mut self, changes: &[(ObjectName, ServicePlan)]) -> ApplyResult {
        let result = self.0.apply(changes);
        self.1.failed |= !self.1.datapath.apply(changes).failures.is_empty();
        result
    }
    fn prune(&mut self, known: &HashSet<ObjectName>) -> ApplyResult {
        let result = self.0.prune(known);
        self.1.failed |= !self.1.datapath.prune(known).failures.is_empty();
        result
    }
}

impl Agent {
    /// Applies services to the maps in use, and to those that are being filled.
    pub(super) fn apply_services(&mut self) -> Synced {
        match &mut self.growing {
            Growing::Filled(filling) => {
                let mut both = Both(&mut self.datapath, filling);
                self.syncer.sync(&mut both)
            }
            _ => self.syncer.sync(&mut self.datapath),
        }
    }

    /// Fills larger maps with some more services; goes over to them after the last one.
    pub(super) fn fill_larger(&mut self) {
        let Growing::Filled(filling) = &mut self.growing else {
            return;
        };
        if !filling.rest.is_empty() {
            let failures = self.syncer.fill(&mut filling.datapath, &mut filling.rest);
            filling.failed |= !failures.is_empty();
            return;
        }
        let Growing::Filled(filled) = std::mem::replace(&mut self.growing, Growing::No) else {
            return;
        };
        let failed = filled.failed;
        self.datapath = filled.datapath;
        self.begin_with_maps();
        if failed {
            self.syncer.resync();
        }
        // Those that the smaller maps had no room for are among these.
        self.try_again();
    }
}
