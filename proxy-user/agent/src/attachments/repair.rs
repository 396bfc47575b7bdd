// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares the kernel with what the agent has put there: quickly every second, fully every 30 s
//! and when a pin was removed. What was missing or foreign is put back, counted, logged and shown
//! as a warning for some minutes. Called once a second, and when a pin was removed.

use std::time::Duration;

use control::{causes::chain, object::Warning, warnings::Topic};
use datapath::{Repair, RepairKind, Repaired};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::time::Instant;

use super::Attachments;
use crate::{agent::Shared, server::health::Area, services::Services};

/// KUBE: kube-proxy's sync period, after which it has repaired its rules.
const EVERY: Duration = Duration::from_secs(30);
/// How many services are compared at a time, in some milliseconds.
const SERVICES: usize = 256;
/// How long a repair stays among the warnings.
const REPORTED: Duration = Duration::from_secs(300);

/// When the next check is due, and what was repaired lately.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    /// When the next full check is due.
    due: Option<Instant>,
    /// Something could not be put back: a full check every second.
    failing: bool,
    /// The position of the services that are compared next.
    cursor: usize,
    reported: Vec<(Instant, Warning)>,
}

impl Attachments {
    /// Checks and repairs. `news`: a pin was removed.
    pub(crate) fn repair(&mut self, shared: &mut Shared, services: &mut Services, news: bool) {
        if shared.datapath.predecessors().is_some() {
            // The previous programs are still attached; they are not foreign, and go in a moment.
            return;
        }
        let now = Instant::now();
        // The first full check comes some time after the programs were attached.
        let due = *self.repairs.due.get_or_insert(now + EVERY) <= now;
        let whole = due || news || self.repairs.failing;
        let mut found = self.repair_attachments(shared, whole);
        if due {
            self.repairs.due = Some(now + EVERY);
            found.extend(shared.datapath.repair_node());
            found.extend(self.repair_services(shared, services));
        }
        self.pin_watch.renew();
        self.report(shared, now, found);
    }

    fn repair_attachments(&mut self, shared: &mut Shared, whole: bool) -> Repaired {
        let mut found = Vec::new();
        let mut whole = whole;
        if whole || !shared.datapath.pins_are_in_place() {
            found.extend(shared.datapath.repair_pins());
            // Without a directory links cannot be pinned; they work without pins.
            whole = found.iter().all(|repair| repair.failure.is_none());
        }
        let interfaces = self.interfaces.attached().values();
        found.extend(shared.datapath.repair_interfaces(interfaces, !whole));
        found.append(&mut self.uplinks.repaired);
        if let Some(cgroup) = self.hooks.cgroup() {
            found.extend(shared.datapath.repair_hooks(cgroup, !whole));
        }
        found
    }

    /// Compares some services with the maps.
    fn repair_services(&mut self, shared: &mut Shared, services: &mut Services) -> Repaired {
        let mut found = Vec::new();
        let names = shared
            .datapath
            .some_services(&mut self.repairs.cursor, SERVICES);
        for name in names {
            let object = format!("Service {name}");
            let written = shared.datapath.repair_service(&name);
            let planned = services.syncer.recheck(&mut shared.datapath, &name);
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

    fn report(&mut self, shared: &Shared, now: Instant, found: Repaired) {
        let mut faults = Vec::new();
        let before = self.repairs.reported.len();
        self.repairs
            .reported
            .retain(|(since, _)| now < *since + REPORTED);
        let mut changed = self.repairs.reported.len() < before || self.repairs.failing;
        for repair in found {
            changed = true;
            if repair.failure.is_some() {
                faults.push(warning(&repair));
            } else {
                shared.metrics.repairs.count(repair.kind);
                self.repairs.reported.push((now, warning(&repair)));
            }
        }
        self.repairs.failing = !faults.is_empty();
        shared.health.set_faults(Area::Repairs, &faults);
        if changed {
            let reported = self
                .repairs
                .reported
                .iter()
                .map(|(_, warning)| warning.clone());
            faults.extend(reported);
            faults.dedup();
            shared.warnings.replace(Topic::Repairs, faults);
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

/// Raises the limit of descriptors as far as this process may: each interface takes two.
pub(crate) fn raise_descriptor_limit() {
    // If it fails, so does attaching to the last interfaces of a very large node, with an error.
    _ = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, most)| setrlimit(Resource::RLIMIT_NOFILE, most, most));
}
