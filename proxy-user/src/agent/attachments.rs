// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keeps the programs attached to the interfaces that they belong on, as these come and go. Called by `agent`.

use std::collections::{BTreeMap, HashMap};

use crate::{
    causes::chain,
    datapath::{Datapath, DatapathError},
    interfaces::Interface,
    object::Warning,
};

/// The interfaces that the programs are attached to.
#[derive(Debug, Default)]
pub(super) struct InterfaceAttachments {
    /// The pins of an earlier run have been taken over.
    begun: bool,
    /// As they were when last attached to, by index.
    attached: BTreeMap<u32, Interface>,
}

impl InterfaceAttachments {
    pub(super) fn len(&self) -> usize {
        self.attached.len()
    }
    /// As they were when last attached to, by index.
    pub(super) fn attached(&self) -> &BTreeMap<u32, Interface> {
        &self.attached
    }
    /// Attaches to interfaces that are new or changed, detaches from those that are gone. Failures are tried again by the next
    /// call.
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
        let mut warnings = Vec::new();
        let gone: Vec<u32> = self
            .attached
            .keys()
            .filter(|index| !wanted.contains_key(index))
            .copied()
            .collect();
        for index in gone {
            self.attached.remove(&index);
            if let Err(error) = datapath.detach(index) {
                warnings.push(left_over(index, &error));
            }
        }
        for (index, interface) in wanted {
            if self.attached.get(&index) == Some(interface) {
                continue;
            }
            match datapath.attach(interface) {
                Ok(()) => {
                    self.attached.insert(index, interface.clone());
                }
                Err(error) => {
                    self.attached.remove(&index);
                    // Nobody looks at what stands beside the programs that it may still have.
                    let _ = datapath.set_redirects(index, false);
                    // A pod that came and went is not in the next list of interfaces.
                    if !error.is_gone() {
                        warnings.push(unserved(&interface.name, &error));
                    }
                }
            }
        }
        warnings
    }

    /// Gives the new programs to interfaces that an earlier run has attached to, and removes the pins of others.
    fn begin(
        &mut self,
        datapath: &mut Datapath,
        wanted: &BTreeMap<u32, &Interface>,
    ) -> Vec<Warning> {
        let all: Vec<Interface> = wanted.values().copied().cloned().collect();
        let mut failures: HashMap<u32, DatapathError> =
            datapath.attach_only(&all).into_iter().collect();
        let mut warnings = Vec::new();
        for interface in all {
            match failures.remove(&interface.index) {
                Some(error) => {
                    let _ = datapath.set_redirects(interface.index, false);
                    warnings.push(unserved(&interface.name, &error));
                }
                None => _ = self.attached.insert(interface.index, interface),
            }
        }
        warnings.extend(
            failures
                .iter()
                .map(|(index, error)| left_over(*index, error)),
        );
        warnings
    }
}

fn left_over(index: u32, error: &DatapathError) -> Warning {
    Warning {
        object: format!("interface with index {index}"),
        reason: format!(
            "portolan's programs could not be detached: {}; to remove them, stop the agent and run `portolan cleanup`",
            chain(error),
        ),
    }
}

fn unserved(name: &str, error: &DatapathError) -> Warning {
    Warning {
        object: format!("interface {name}"),
        reason: format!(
            "services are not served to clients behind it: {}; it is tried again every second",
            chain(error),
        ),
    }
}
