// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Looks at what stands beside our programs: foreign programs before them are named; with `forwarding: redirect`, interfaces where
//! something needs the stack are named and left to it. Called by `steps`.

use std::{collections::BTreeMap, io, time::Duration};

use tokio::time::Instant;

use super::leave::{Reason, Routing, reason};
use crate::{
    causes::chain,
    datapath::{self, Datapath, ForeignProgram, Place},
    interfaces::Interface,
    object::Warning,
};

/// How often to look: the kernel says nothing when a tcx program is attached.
const EVERY: Duration = Duration::from_secs(1);

/// When was looked, and at what.
#[derive(Debug, Default)]
pub(super) struct Beside {
    look_at: Option<Instant>,
    interfaces: BTreeMap<u32, Interface>,
}

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Foreign programs before ours.
    pub(super) before: Vec<Warning>,
    /// Interfaces that do not redirect, and why.
    pub(super) left: Vec<Warning>,
    pub(super) left_interfaces: u32,
}

impl Beside {
    /// Looks if it is time, or if the attached interfaces have changed.
    pub(super) fn look(
        &mut self,
        now: Instant,
        datapath: &mut Datapath,
        attached: &BTreeMap<u32, Interface>,
        all: &[Interface],
        redirects: bool,
    ) -> Option<Found> {
        let is_early = self.look_at.is_some_and(|look_at| now < look_at);
        if is_early && self.interfaces == *attached {
            return None;
        }
        self.look_at = Some(now + EVERY);
        self.interfaces.clone_from(attached);
        let mut found = Found::default();
        let seen = match datapath.foreign_programs(attached.values()) {
            Ok(seen) => seen,
            Err(error) => {
                found.before.push(unknown(&error));
                return Some(found);
            }
        };
        found.before.extend(
            seen.iter()
                .flat_map(|(interface, programs)| before(&interface.name, programs)),
        );
        if redirects {
            let routing = Routing {
                rules: datapath::routing_rules().map_err(|error| chain(&error)),
                has_policies: datapath::has_xfrm_policies().map_err(|error| chain(&error)),
            };
            for (interface, programs) in &seen {
                let reason = reason(interface, all, programs, &routing);
                let stored = datapath.set_redirects(interface.index, reason.is_none());
                let said = reason.map(|reason| reason.warning(&interface.name));
                found.left_interfaces += u32::from(said.is_some());
                found.left.extend(said);
                found.left.extend(stored.err().map(|error| {
                    Reason::Interface(format!(
                        "its properties could not be stored: {}",
                        chain(&error)
                    ))
                    .warning(&interface.name)
                }));
            }
            // What holds for the whole node is said once.
            found.left.sort_unstable();
            found.left.dedup();
        }
        Some(found)
    }
}

fn before(interface: &str, programs: &[ForeignProgram]) -> Vec<Warning> {
    let before = programs
        .iter()
        .filter(|program| program.place == Place::Before);
    before
        .map(|program| Warning {
            object: "tc programs".to_owned(),
            reason: format!(
                "{} runs before portolan's at {} of {interface} and may hide packets of services from it: attach it behind portolan's",
                program.name,
                if program.egress { "egress" } else { "ingress" },
            ),
        })
        .collect()
}

fn unknown(error: &io::Error) -> Warning {
    Warning {
        object: "tc programs".to_owned(),
        reason: format!(
            "it is not known whether other programs run before portolan's: {}; it is tried again every second",
            chain(error),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_programs_before_ours_are_named() {
        let program = |egress, place, name: &str| ForeignProgram {
            egress,
            place,
            name: name.into(),
        };
        let programs = [
            program(false, Place::Behind, "program 1 (a)"),
            program(false, Place::Bridge, "program 2 (b)"),
            program(true, Place::Before, "program 3 (c)"),
        ];
        let said = before("eth0", &programs);
        let said: Vec<_> = said.iter().map(|warning| &*warning.reason).collect();
        assert_eq!(
            said,
            [
                "program 3 (c) runs before portolan's at egress of eth0 and may hide packets of services from it: attach it behind portolan's"
            ]
        );
    }
}
