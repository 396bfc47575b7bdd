// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares what the agent has put into the kernel with what is there now, and restores what
//! somebody else has removed or changed. Part of `Datapath`; called by `agent`.

use std::{path::Path, sync::Arc};

use control::causes::chain;
use linux::interfaces::Interface;
use proxy_common::maps;

use super::{
    Datapath, DatapathError,
    maps::{Lock, pins},
    programs::Damage,
};

/// The kind of object that is repaired.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RepairKind {
    /// A program at an interface.
    Interface,
    /// A program at a socket hook.
    Hook,
    /// A pin of a map.
    Pin,
    /// Elements of a map that describes the node.
    Node,
    /// Map elements of a service.
    Service,
}

impl RepairKind {
    pub const ALL: [Self; 5] = [
        Self::Interface,
        Self::Hook,
        Self::Pin,
        Self::Node,
        Self::Service,
    ];

    /// Returns the kind's name as the label of a metric.
    pub fn name(self) -> &'static str {
        match self {
            Self::Interface => "interface",
            Self::Hook => "hook",
            Self::Pin => "pin",
            Self::Node => "node",
            Self::Service => "service",
        }
    }
}

/// An object that was not as the agent had left it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Repair {
    pub kind: RepairKind,
    /// The object's name for the operator, such as `interface eth0`.
    pub object: String,
    pub damage: String,
    /// Why the object could not be repaired; `None` if it was.
    pub failure: Option<String>,
}

/// The result of a check: one for each object that was not as the agent had left it.
pub type Repaired = Vec<Repair>;

impl Repair {
    pub fn new(kind: RepairKind, object: impl Into<String>, damage: impl Into<String>) -> Self {
        Self {
            kind,
            object: object.into(),
            damage: damage.into(),
            failure: None,
        }
    }
    fn done(mut self, result: Result<(), DatapathError>) -> Self {
        self.failure = result.err().map(|error| chain(&error));
        self
    }
}

impl Datapath {
    /// True if the pin directory was not removed or replaced since the last check. Takes a few
    /// microseconds.
    pub fn pins_are_in_place(&self) -> bool {
        self.pinned.is_in_place(&self.home)
    }

    /// Creates the pin directory again if it is gone, and pins every map that has lost its pin.
    pub fn repair_pins(&mut self) -> Repaired {
        let mut repaired = Vec::new();
        let directory = self.pin_dir.display().to_string();
        let damaged = |damage: String| Repair::new(RepairKind::Pin, &directory, damage);
        let in_place = self.pins_are_in_place();
        if !in_place {
            let repair = damaged("the pin directory had gone".to_owned());
            let made = pins::create_dirs(&self.pin_dir).and_then(|()| {
                // The lock is on the directory itself. The lock on the old directory is released
                // last.
                if !self.lock.is_of(&self.pin_dir) {
                    self.lock = Arc::new(Lock::take(&self.pin_dir)?);
                }
                pins::create_links(&self.home)
            });
            let failed = made.is_err();
            repaired.push(repair.done(made));
            if failed {
                return repaired;
            }
        }
        match self.pinned.repair(&self.home) {
            Ok(names) if names.is_empty() => {}
            Ok(names) => {
                let names = names.join(", ");
                repaired.push(damaged(format!(
                    "no pins, or wrong ones, of the maps {names}"
                )));
            }
            Err(error) => {
                let repair = damaged("no pins, or wrong ones, of maps".to_owned());
                repaired.push(repair.done(Err(error)));
                return repaired;
            }
        }
        if self.has_grown {
            self.mark_grown();
        }
        self.pinned.note_place(&self.home);
        repaired
    }

    /// Puts our programs back at the tc hooks of these interfaces where they are missing or
    /// replaced. Must run in the interfaces' network namespace. A quick check only finds tcx links
    /// that are detached or behind another program.
    pub fn repair_interfaces<'a>(
        &mut self,
        interfaces: impl IntoIterator<Item = &'a Interface>,
        quick: bool,
    ) -> Repaired {
        let mut repaired = Vec::new();
        for interface in interfaces {
            let object = format!("interface {}", interface.name);
            let damage = match self.attachments.damage(&self.programs, interface, quick) {
                Ok(damage) => damage,
                // The interface has just been removed; the next list of interfaces does not have
                // it.
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => continue,
                Err(error) => {
                    let damage = "it could not be looked at";
                    let mut repair = Repair::new(RepairKind::Interface, object, damage);
                    repair.failure = Some(chain(&error));
                    repaired.push(repair);
                    continue;
                }
            };
            if damage.is_empty() {
                continue;
            }
            for damage in damage.iter().filter(|damage| damage.is_behind()) {
                self.attachments.leave_hook(interface.index, damage.egress);
            }
            let attached = self.attach(interface);
            if attached.as_ref().is_err_and(DatapathError::is_gone) {
                continue;
            }
            let damage: Vec<_> = damage.into_iter().map(Damage::describe).collect();
            let repair = Repair::new(RepairKind::Interface, object, damage.join(", "));
            repaired.push(repair.done(attached));
        }
        repaired
    }

    /// Puts our programs back at the socket hooks of a cgroup where they are missing or replaced. A
    /// quick check skips the pins of the links.
    pub fn repair_hooks(&mut self, cgroup: &Path, quick: bool) -> Repaired {
        let damage = self.hooks.damage(&self.programs, &self.home, cgroup, quick);
        let (damage, result) = match damage {
            Ok(damage) if damage.is_empty() => return Vec::new(),
            Ok(damage) => (damage.join(", "), self.attach_hooks(cgroup)),
            Err(source) => {
                let path = cgroup.into();
                let error = DatapathError::Cgroup { path, source };
                ("they could not be looked at".to_owned(), Err(error))
            }
        };
        let repair = Repair::new(RepairKind::Hook, "socket hooks", damage);
        vec![repair.done(result)]
    }

    /// Restores those maps that somebody has changed of the node's settings, addresses, pods,
    /// MACs, interfaces, excepted cgroups and uplinks.
    pub fn repair_node(&mut self) -> Repaired {
        let looks = [
            (maps::SETTINGS, self.settings.repair()),
            ("addresses", self.addresses.repair()),
            ("pods", self.pods.repair()),
            (maps::MACS, self.macs.repair()),
            (maps::INTERFACES, self.masquerade.repair()),
            (maps::EXCEPTIONS, self.exceptions.repair()),
            (maps::UPLINKS, self.uplinks.repair()),
        ];
        let mut repaired = Vec::new();
        for (map, differed) in looks {
            let repair =
                |damage: String| Repair::new(RepairKind::Node, format!("map {map}"), damage);
            match differed {
                Ok(0) => {}
                Ok(count) => repaired.push(repair(format!("{count} elements were changed"))),
                Err(error) => {
                    let repair = repair("it could not be compared".to_owned());
                    repaired.push(repair.done(Err(error)));
                }
            }
        }
        repaired
    }
}
