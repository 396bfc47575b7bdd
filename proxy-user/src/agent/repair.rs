// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Holds the truth against the kernel: quickly every second, wholly every 30 s and when a pin goes. What was missing or foreign is
//! put back, counted, logged and shown as a warning for some minutes. Called by `agent::run` and `steps`.

use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::time::Instant;

use super::steps::Agent;
use crate::{
    causes::chain,
    datapath::{Repair, RepairKind, Repaired},
    object::Warning,
    server::health::Area,
    warnings::Topic,
};

/// KUBE: kube-proxy's sync period, after which it has repaired its rules.
const EVERY: Duration = Duration::from_secs(30);
/// Services that are compared at a time: some milliseconds.
const SERVICES: usize = 256;
/// How long a repair stays among the warnings.
const TOLD: Duration = Duration::from_secs(300);

impl Agent {
    /// Looks, and repairs. With `news`, a pin has gone.
    pub(super) fn repair(&mut self, news: bool) {
        if self.datapath.predecessors().is_some() {
            // The programs before are not foreign, and go in a moment.
            return;
        }
        let now = Instant::now();
        // The first look comes some time after the programs were attached.
        let due = *self.repairs.due.get_or_insert(now + EVERY) <= now;
        let whole = due || news || self.repairs.failing;
        let mut found = self.repair_attachments(whole);
        if due {
            self.repairs.due = Some(now + EVERY);
            found.extend(self.datapath.repair_node());
            found.extend(self.repair_services());
        }
        self.pin_watch.renew();
        self.tell(now, found);
    }

    fn repair_attachments(&mut self, whole: bool) -> Repaired {
        let mut found = Vec::new();
        let mut whole = whole;
        if whole || !self.datapath.pins_are_in_place() {
            found.extend(self.datapath.repair_pins());
            // Without a directory links cannot be pinned, and are served as they are.
            whole = found.iter().all(|repair| repair.failure.is_none());
        }
        let interfaces = self.attachments.attached().values();
        found.extend(self.datapath.repair_interfaces(interfaces, !whole));
        found.append(&mut self.uplinks.repaired);
        if let Some(cgroup) = self.hooks.cgroup() {
            found.extend(self.datapath.repair_hooks(cgroup, !whole));
        }
        found
    }

    /// Compares some services.
    fn repair_services(&mut self) -> Repaired {
        let mut found = Vec::new();
        let names = self
            .datapath
            .some_services(&mut self.repairs.cursor, SERVICES);
        for name in names {
            let object = format!("Service {name}");
            let written = self.datapath.repair_service(&name);
            let planned = self.syncer.recheck(&mut self.datapath, &name);
            match written {
                Ok(written) if written + planned > 0 => {
                    let damage = format!("{} elements of the maps were changed", written + planned);
                    found.push(Repair::new(RepairKind::Service, object, damage));
                }
                Ok(_) => {}
                Err(error) => {
                    let damage = "it could not be compared with the maps";
                    let mut repair = Repair::new(RepairKind::Service, object, damage);
                    repair.failure = Some(chain(&error));
                    found.push(repair);
                    break;
                }
            }
        }
        found
    }

    fn tell(&mut self, now: Instant, found: Repaired) {
        let mut faults = Vec::new();
        let before = self.repairs.told.len();
        self.repairs.told.retain(|(since, _)| now < *since + TOLD);
        let mut changed = self.repairs.told.len() < before || self.repairs.failing;
        for repair in found {
            changed = true;
            if repair.failure.is_some() {
                faults.push(warning(&repair));
            } else {
                self.metrics.repairs.count(repair.kind);
                self.repairs.told.push((now, warning(&repair)));
            }
        }
        self.repairs.failing = !faults.is_empty();
        self.health.set_faults(Area::Repairs, &faults);
        if changed {
            let told = self.repairs.told.iter().map(|(_, warning)| warning.clone());
            faults.extend(told);
            faults.dedup();
            self.warnings.replace(Topic::Repairs, faults);
        }
    }
}

fn warning(repair: &Repair) -> Warning {
    let outcome = match &repair.failure {
        None => "it was put back; find out who removes or changes it".to_owned(),
        Some(failure) => {
            format!("it cannot be put back: {failure}; it is tried again every second")
        }
    };
    Warning {
        object: repair.object.clone(),
        reason: format!("{}: {outcome}", repair.damage),
    }
}

/// Allows as many descriptors as this process may have: each interface takes two.
pub(super) fn raise_descriptor_limit() {
    // With the lower limit, attaching to the last interfaces of a very large node fails, and says so.
    _ = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, most)| setrlimit(Resource::RLIMIT_NOFILE, most, most));
}
