// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How far larger maps are, and what applies to them while they are filled beside those in use. Held by `steps`, driven by `growth`.

use std::collections::{HashSet, VecDeque};

use tokio::time::Instant;

use crate::{
    datapath::{ApplyResult, Datapath},
    object::ObjectName,
    plan::ServicePlan,
    syncer::{Kernel, Synced, Syncer},
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
    /// Applies services that are dirty or wait to the maps in use, and to those that are being filled.
    pub(super) fn sync(&mut self, syncer: &mut Syncer, datapath: &mut Datapath) -> Synced {
        match self {
            Self::Filled(filling) => syncer.sync(&mut Both(datapath, filling)),
            _ => syncer.sync(datapath),
        }
    }
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

    /// Stores some more services. False if there are no more.
    pub(super) fn go_on(&mut self, syncer: &mut Syncer) -> bool {
        if self.rest.is_empty() {
            return false;
        }
        let failures = syncer.fill(&mut self.datapath, &mut self.rest);
        self.failed |= !failures.is_empty();
        true
    }
    /// The maps, and whether some services could not be stored.
    pub(super) fn into_maps(self) -> (Datapath, bool) {
        (self.datapath, self.failed)
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
