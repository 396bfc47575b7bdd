// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keeps the programs on the interfaces that they belong on, as these come and go. Called by `agent`.

use std::collections::{BTreeMap, BTreeSet};

use crate::{causes::chain, datapath::Datapath, interfaces::Interface, plan::Warning};

/// Where the programs are.
#[derive(Debug, Default)]
pub(super) struct Attachments {
    /// Whether pins of an earlier run were looked at.
    begun: bool,
    /// As they were when last attached to, by index.
    attached: BTreeMap<u32, Interface>,
    failed: BTreeSet<u32>,
}

impl Attachments {
    pub(super) fn len(&self) -> usize {
        self.attached.len()
    }
    /// Attaches to what is new or changed, detaches from what is gone.
    pub(super) fn update(
        &mut self,
        datapath: &mut Datapath,
        interfaces: &[Interface],
    ) -> Vec<Warning> {
        let wanted: BTreeMap<u32, &Interface> = interfaces
            .iter()
            .filter(|interface| interface.attach)
            .map(|interface| (interface.index, interface))
            .collect();
        if !self.begun {
            self.begun = true;
            return self.begin(datapath, &wanted);
        }
        let mut faults = Vec::new();
        let gone: Vec<u32> = self
            .attached
            .keys()
            .filter(|index| !wanted.contains_key(index))
            .copied()
            .collect();
        for index in gone {
            self.attached.remove(&index);
            if let Err(error) = datapath.detach(index) {
                faults.push(Warning {
                    object: format!("interface with index {index}"),
                    reason: format!(
                        "what is left of its attachment could not be removed: {}; `portolan cleanup` removes it when the agent is stopped",
                        chain(&error),
                    ),
                });
            }
        }
        self.failed.retain(|index| wanted.contains_key(index));
        for (index, interface) in wanted {
            if self.attached.get(&index) == Some(interface) {
                continue;
            }
            match datapath.attach(interface) {
                Ok(()) => {
                    self.failed.remove(&index);
                    self.attached.insert(index, interface.clone());
                }
                // A pod that came and went: the next snapshot is without it.
                Err(error) if error.is_gone() => {
                    self.attached.remove(&index);
                }
                Err(error) => {
                    self.attached.remove(&index);
                    self.failed.insert(index);
                    faults.push(unserved(&interface.name, &chain(&error)));
                }
            }
        }
        faults
    }

    /// An earlier run's pins may be of interfaces that are gone, and are to have the new programs.
    fn begin(
        &mut self,
        datapath: &mut Datapath,
        wanted: &BTreeMap<u32, &Interface>,
    ) -> Vec<Warning> {
        let all: Vec<Interface> = wanted.values().copied().cloned().collect();
        let faults = datapath.attach_only(&all);
        for interface in all {
            let name = format!("interface {}", interface.name);
            if faults.iter().any(|fault| fault.object == name) {
                self.failed.insert(interface.index);
            } else {
                self.attached.insert(interface.index, interface);
            }
        }
        faults
    }
}

fn unserved(name: &str, error: &str) -> Warning {
    Warning {
        object: format!("interface {name}"),
        reason: format!(
            "services are not served to clients behind it: {error}; it is tried again every second",
        ),
    }
}
