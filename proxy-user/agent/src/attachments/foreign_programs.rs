// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Looks for foreign tc programs at portolan's interfaces. Those that run before portolan's are
//! named in a warning. With `forwarding: auto`, an interface where something needs the kernel's
//! network stack is named in a warning, and its packets take the stack.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use control::{causes::chain, object::Warning};
use datapath::{ChainPosition, Datapath, ForeignProgram};
use linux::interfaces::Interface;
use tokio::time::Instant;

use super::redirect_eligibility::{Reason, Routing, is_open, reason};

/// How often to look for foreign programs if packets may bypass the stack: the kernel sends no
/// message when a tcx program is attached. A little less than the agent's tick.
const EVERY: Duration = Duration::from_millis(900);
/// How often to look for foreign programs if packets may not bypass the stack.
const SELDOM: Duration = Duration::from_secs(10);

/// When foreign programs were last looked for, and at which interfaces.
#[derive(Debug, Default)]
pub(super) struct ForeignPrograms {
    looked_at: Option<Instant>,
    interfaces: BTreeMap<u32, Interface>,
    /// Interfaces that are newer than the agent, and when each was first seen. Key: interface
    /// index. They take the stack at first: foreign programs may be attached right after an
    /// interface appears.
    new: BTreeMap<u32, Instant>,
}

/// The result of one look at all attached interfaces.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// How many foreign programs run before portolan's. `before` is one warning about all of them.
    pub(super) before_count: usize,
    pub(super) before: Option<Warning>,
    /// Warnings about interfaces whose packets take the stack, and about what could not be read.
    pub(super) left: Vec<Warning>,
    pub(super) left_interfaces: u32,
    /// Indexes of the interfaces whose pods can get packets past the stack.
    pub(super) open: BTreeSet<u32>,
}

/// An attached interface with the foreign programs there, or why they could not be read.
type Seen<'a> = (&'a Interface, Result<Vec<ForeignProgram>, String>);

/// Returns the foreign programs at each of these interfaces, or why they could not be read.
pub(super) fn seen<'a>(
    datapath: &Datapath,
    interfaces: impl Iterator<Item = &'a Interface> + Clone,
) -> Vec<Seen<'a>> {
    match datapath.foreign_programs(interfaces.clone()) {
        Ok(seen) => seen
            .into_iter()
            .map(|(interface, programs)| (interface, programs.map_err(|error| chain(&error))))
            .collect(),
        Err(error) => {
            let error = chain(&error);
            let unread = |interface| (interface, Err(error.clone()));
            interfaces.map(unread).collect()
        }
    }
}

impl ForeignPrograms {
    /// True if an interface has changed since the last look, so that the next look is due at once.
    /// New interfaces do not count: their packets take the stack until the next look.
    pub(super) fn is_outdated(&self, attached: &BTreeMap<u32, Interface>) -> bool {
        let mut known = self.interfaces.iter();
        known.any(|(index, known)| attached.get(index).is_some_and(|now| now != known))
    }
    /// Looks for foreign programs when due, or if the attached interfaces have changed; else
    /// returns None. `all`: the node's interfaces; `redirects`: whether packets may bypass the
    /// stack.
    pub(super) fn look(
        &mut self,
        now: Instant,
        datapath: &mut Datapath,
        attached: &BTreeMap<u32, Interface>,
        all: &[Interface],
        redirects: bool,
    ) -> Option<Found> {
        let every = if redirects { EVERY } else { SELDOM };
        let is_early = self
            .looked_at
            .is_some_and(|looked_at| now < looked_at + every);
        if is_early && self.interfaces == *attached {
            return None;
        }
        self.new
            .retain(|index, since| attached.contains_key(index) && now < *since + EVERY);
        if self.looked_at.is_some() {
            let came = attached
                .keys()
                .filter(|index| !self.interfaces.contains_key(index));
            self.new.extend(came.map(|index| (*index, now)));
        }
        self.looked_at = Some(now);
        self.interfaces.clone_from(attached);
        let seen = seen(datapath, attached.values());
        let (before_count, before) = before(&seen);
        let mut found = Found {
            before_count,
            before,
            left: seen.iter().filter_map(unread).collect(),
            left_interfaces: 0,
            open: BTreeSet::new(),
        };
        if redirects {
            self.permit(datapath, &seen, all, &mut found);
        }
        // A warning about the node as a whole comes from every interface, but must appear once.
        found.left.sort_unstable();
        found.left.dedup();
        Some(found)
    }

    /// Stores for each interface whether packets that come in by it may bypass the stack.
    fn permit(
        &self,
        datapath: &mut Datapath,
        seen: &[Seen<'_>],
        all: &[Interface],
        found: &mut Found,
    ) {
        let routing = Routing::read();
        for (interface, programs) in seen {
            let reason = reason(interface, all, programs, &routing);
            let is_new = self.new.contains_key(&interface.index);
            let stored = datapath.set_redirects(interface.index, reason.is_none() && !is_new);
            let is_open = !is_new && routing.is_plain() && is_open(programs);
            found.open.extend(is_open.then_some(interface.index));
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
    }
}

/// Returns how many foreign programs run before portolan's, and one warning about all of them: a
/// CNI's programs run at every pod's interface.
fn before(seen: &[Seen<'_>]) -> (usize, Option<Warning>) {
    let programs = seen.iter().flat_map(|(interface, programs)| {
        let programs = programs.iter().flatten();
        programs
            .filter(|program| program.place == ChainPosition::Before)
            .map(|program| (interface.name.as_str(), program))
    });
    let said: Vec<_> = programs
        .map(|(interface, program)| {
            let hook = if program.egress { "egress" } else { "ingress" };
            format!(
                "{} runs before portolan's at {hook} of {interface}",
                program.name
            )
        })
        .collect();
    let more = match said.len() {
        0 => return (0, None),
        1 => String::new(),
        all => format!(", and {} more like it", all - 1),
    };
    let warning = Warning {
        object: "tc programs".to_owned(),
        reason: format!(
            "{}{more}: it may hide packets of services from it; attach it behind portolan's",
            said[0],
        ),
    };
    (said.len(), Some(warning))
}

fn unread((interface, programs): &Seen<'_>) -> Option<Warning> {
    let error = programs.as_ref().err()?;
    Some(Warning {
        object: format!("interface {}", interface.name),
        reason: format!(
            "it is not known whether other programs run before portolan's: {error}; it is tried again in some seconds",
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attachments::redirect_eligibility::tests::program;
    use linux::interfaces::InterfaceKind;

    #[test]
    fn only_foreign_programs_before_ours_give_a_warning() {
        let eth0 = interface();
        let seen = |programs: &[ForeignProgram]| before(&[(&eth0, Ok(programs.to_vec()))]);
        let mut programs = vec![
            program(false, ChainPosition::Behind, "program 1 (a)"),
            program(false, ChainPosition::Bridge, "program 2 (b)"),
        ];
        assert_eq!(seen(&programs), (0, None));
        programs.push(program(true, ChainPosition::Before, "program 3 (c)"));
        let expected = "program 3 (c) runs before portolan's at egress of eth0: it may hide packets of services from it; attach it behind portolan's";
        let said =
            |(count, warning): (usize, Option<Warning>)| (count, warning.expect("one").reason);
        assert_eq!(said(seen(&programs)), (1, expected.to_owned()));
        programs.push(program(false, ChainPosition::Before, "program 4 (d)"));
        let expected = expected.replace("eth0:", "eth0, and 1 more like it:");
        assert_eq!(said(seen(&programs)), (2, expected));
    }

    #[test]
    fn an_unreadable_interface_does_not_hide_foreign_programs_of_others() {
        let eth0 = interface();
        let program = program(false, ChainPosition::Before, "program 1");
        let seen = [(&eth0, Err("busy".to_owned())), (&eth0, Ok(vec![program]))];
        assert_eq!(before(&seen).0, 1);
        assert_eq!(seen.iter().filter_map(unread).count(), 1);
    }

    fn interface() -> Interface {
        linux::testing::interface(2, "eth0", InterfaceKind::Uplink)
    }
}
