// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes plans into the maps: the datapath as the syncer's kernel.

use std::collections::HashSet;

use control::{apply::ApplyResult, object::ObjectName, plan::ServicePlan, syncer::Kernel};

use crate::{Datapath, store::Quota};

impl Datapath {
    /// Updates the maps to these services' plans; an empty plan removes the service.
    pub fn apply(&mut self, changes: &[(ObjectName, ServicePlan)]) -> ApplyResult {
        self.store(changes, Quota::ButReserve)
    }
    /// Does the same for services that the older maps had. They may use the reserve that new
    /// services must leave free, because they may have used it before.
    pub fn restore(&mut self, changes: &[(ObjectName, ServicePlan)]) -> ApplyResult {
        self.store(changes, Quota::All)
    }
    fn store(&mut self, changes: &[(ObjectName, ServicePlan)], of_new: Quota) -> ApplyResult {
        let result = self.store.apply(changes, of_new, &mut self.settings);
        if result.udp_lost {
            self.sweep.mend_lost(&self.store);
        }
        result
    }
    /// Removes every service that is not in `known`: services that an earlier run left in the maps.
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
