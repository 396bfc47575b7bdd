// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares the kernel with what the agent has put there: the attached programs every second,
//! everything every 30 s and when a pin was removed. What is missing or was changed is put back,
//! counted, logged, and shown as a warning for some minutes.

use std::time::Duration;

use control::{causes::chain, object::Warning, warnings::Topic};
use datapath::{Repair, RepairKind, Repaired};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::time::Instant;

use super::Attachments;
use crate::{agent::Shared, server::health::Area, services::Services};

/// Time between two full checks. KUBE: kube-proxy's sync period, after which it has repaired its
/// rules.
const EVERY: Duration = Duration::from_secs(30);
/// How many services one full check compares with the maps, which takes some milliseconds.
const SERVICES: usize = 256;
/// How long a repair is shown as a warning.
const REPORTED: Duration = Duration::from_secs(300);

/// When the next full check is due, and what was repaired lately.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    /// When the next full check is due.
    due: Option<Instant>,
    /// True if something could not be put back: then every check, once a second, is a full one.
    failing: bool,
    /// Where the next comparison of services with the maps continues in the list of services.
    cursor: usize,
    reported: Vec<(Instant, Warning)>,
}

impl Attachments {
    /// Compares the kernel with what the agent has put there, and repairs differences. `news`: true
    /// if a pin was just removed, so that this is a full check.
    pub(crate) fn repair(&mut self, shared: &mut Shared, services: &mut Services, news: bool) {
        if shared.datapath.predecessors().is_some() {
            // The programs of the previous maps are still attached for a moment; they are not
            // foreign.
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
            // If a directory of pins is missing, links cannot be pinned; they work without pins.
            whole = found.iter().all(|repair| repair.failure.is_none());
        }
        let interfaces = self.interfaces.attached.values();
        found.extend(shared.datapath.repair_interfaces(interfaces, !whole));
        found.append(&mut self.uplinks.repaired);
        if let Some(cgroup) = self.hooks.cgroup() {
            found.extend(shared.datapath.repair_hooks(cgroup, !whole));
        }
        found
    }

    /// Compares the next [`SERVICES`] services with the maps; returns what was repaired.
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
                let repairs = &shared.metrics.state.repairs;
                repairs.get_or_create(&[("kind", repair.kind.name())]).inc();
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

/// Raises the limit of open file descriptors as far as this process may: each interface takes two.
pub(crate) fn raise_descriptor_limit() {
    // If raising fails, attaching to the last interfaces of a very large node fails with an error.
    _ = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, most)| setrlimit(Resource::RLIMIT_NOFILE, most, most));
}
