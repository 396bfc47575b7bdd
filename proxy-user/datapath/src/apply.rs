// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes plans of services into the BPF maps. Implements `Kernel`, by which the syncer calls it.

use std::collections::HashSet;

use control::{apply::ApplyResult, object::ObjectName, plan::ServicePlan, syncer::Kernel};

use crate::{Datapath, store::Quota};

impl Datapath {
    /// Changes the maps as these plans of services demand; an empty plan removes the service.
    pub fn apply(&mut self, changes: &[(ObjectName, ServicePlan)]) -> ApplyResult {
        self.store(changes, Quota::ButReserve)
    }
    /// Like [`Self::apply`], for services that the previous maps already contained. They may use
    /// the reserved elements that new services must leave free, because they may have used them
    /// before.
    pub fn restore(&mut self, changes: &[(ObjectName, ServicePlan)]) -> ApplyResult {
        self.store(changes, Quota::All)
    }
    fn store(&mut self, changes: &[(ObjectName, ServicePlan)], of_new: Quota) -> ApplyResult {
        let result = self.store.apply(changes, of_new, &mut self.settings);
        if result.udp_lost {
            self.sweep.close_lost(&self.store);
        }
        result
    }
    /// Removes every service from the maps that is not in `known`: an earlier run of the agent left
    /// it there.
    pub fn prune(&mut self, known: &HashSet<ObjectName>) -> ApplyResult {
        let removals = self.removals(|name| !known.contains(name));
        self.apply(&removals)
    }
}

impl Kernel for Datapath {
    fn apply(&mut self, changes: &[(ObjectName, ServicePlan)]) -> ApplyResult {
        Self::apply(self, changes)
    }
    fn restore(&mut self, changes: &[(ObjectName, ServicePlan)]) -> ApplyResult {
        Self::restore(self, changes)
    }
    fn prune(&mut self, known: &HashSet<ObjectName>) -> ApplyResult {
        Self::prune(self, known)
    }
}
