// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keeps the tc programs attached to the interfaces that should have them, as interfaces come and
//! go. Called by `attachments`.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use control::{causes::chain, object::Warning};
use datapath::{Datapath, DatapathError};
use linux::interfaces::Interface;

/// The interfaces that the tc programs are attached to.
#[derive(Debug, Default)]
pub(super) struct InterfaceAttachments {
    /// True once the programs were detached from interfaces that an earlier run has attached to and
    /// that should have none.
    begun: bool,
    /// Interfaces that have the programs, as they were when the programs were last attached. Key:
    /// interface index.
    pub(super) attached: BTreeMap<u32, Interface>,
    /// Warnings about interfaces where attaching failed. Key: interface index.
    failing: BTreeMap<u32, Warning>,
}

/// The result of [`InterfaceAttachments::update`].
#[derive(Debug)]
pub(super) struct Updated {
    pub(super) warnings: Vec<Warning>,
    /// True if time ran out, and some new interfaces are left for the next call.
    pub(super) more: bool,
}

impl InterfaceAttachments {
    /// Returns how many interfaces should have the programs, and how many of these have them.
    pub(super) fn counts(&self, interfaces: &[Interface]) -> (usize, usize) {
        let wanted = interfaces.iter().filter(|interface| interface.attach);
        (wanted.count(), self.attached.len())
    }
    /// Attaches the programs to new and changed interfaces, and detaches them from interfaces that
    /// are gone; at first, replaces the programs that an earlier run has attached. The next call
    /// repeats what failed. Stops after `budget`, because attaching waits for two RCU grace periods
    /// of the kernel at each interface; the next call does the rest.
    pub(super) fn update(
        &mut self,
        datapath: &mut Datapath,
        interfaces: &[Interface],
        budget: Duration,
    ) -> Updated {
        let start = Instant::now();
        let wanted: BTreeMap<u32, &Interface> = interfaces
            .iter()
            .filter(|interface| interface.attach)
            .map(|interface| (interface.index, interface))
            .collect();
        let mut warnings = Vec::new();
        let mut known: BTreeSet<u32> = self.attached.keys().copied().collect();
        if !std::mem::replace(&mut self.begun, true) {
            known.extend(datapath.interfaces());
        }
        for index in known {
            if wanted.contains_key(&index) {
                continue;
            }
            self.attached.remove(&index);
            if let Err(error) = datapath.detach(index) {
                warnings.push(left_over(index, &error));
            }
        }
        self.failing.retain(|index, _| wanted.contains_key(index));
        let mut due: Vec<_> = wanted
            .into_iter()
            .filter(|(index, interface)| self.attached.get(index) != Some(interface))
            .collect();
        // New interfaces come first, then those where attaching has failed before. Among the new
        // ones, those that the packets of many pods pass come first.
        due.sort_by_key(|(index, interface)| {
            let has_failed = self.failing.contains_key(index);
            (has_failed, interface.leads_to_one_pod())
        });
        let mut left = due.into_iter();
        for (index, interface) in left.by_ref() {
            match datapath.attach(interface) {
                Ok(()) => {
                    self.failing.remove(&index);
                    self.attached.insert(index, interface.clone());
                }
                Err(error) => {
                    self.attached.remove(&index);
                    // Programs may still be attached there, but nothing looks for foreign programs
                    // there any more, so packets from this interface take the stack.
                    let _ = datapath.set_redirects(index, false);
                    // The interface of a pod that came and went is missing in the next list of
                    // interfaces.
                    if error.is_gone() {
                        self.failing.remove(&index);
                    } else {
                        let warning = unserved(&interface.name, &error);
                        self.failing.insert(index, warning);
                    }
                }
            }
            if start.elapsed() >= budget {
                break;
            }
        }
        let more = left.any(|(index, _)| !self.failing.contains_key(&index));
        warnings.extend(self.failing.values().cloned());
        Updated { warnings, more }
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
