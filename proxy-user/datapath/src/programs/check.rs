// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the faults of tc attachments, such as a detached program. `hooks` does so for the socket
//! hooks. `Datapath` repairs them.

use std::{
    io,
    os::fd::AsFd,
    time::{Duration, Instant},
};

use linux::{detach, interfaces::Interface, link_info, program_id, tcx};

use super::{
    load::Programs,
    pin::is_pinned,
    probe::has_tcx,
    tc::{DIRECTIONS, TcAttachments, direction, handle_of, ours, program_of},
};
use crate::options::Attachment;

/// The time for which a hook is left alone after our program was moved to its front, even if a
/// foreign program comes first again. Moving leaves a moment without our program, and two agents
/// that keep moving their programs would serve no client.
const MOVE_AGAIN: Duration = Duration::from_secs(600);

/// A fault of our attachment at one tc hook, at egress if `egress` is true, else at ingress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Damage {
    pub(crate) egress: bool,
    /// What had happened to our program, for an operator.
    what: &'static str,
}

const DETACHED: &str = "was detached";
const REPLACED: &str = "was replaced by another program";
/// It may hide packets from ours.
const BEHIND: &str = "had another program before it";
/// It would be detached when the agent stops.
const UNPINNED: &str = "had lost its pin";

impl Damage {
    /// True if another program comes before ours.
    pub(crate) fn is_behind(self) -> bool {
        self.what == BEHIND
    }
    /// Returns a text that tells an operator what had happened to the program.
    pub(crate) fn describe(self) -> String {
        let hook = direction(self.egress);
        format!("portolan's program at {hook} {}", self.what)
    }
}

impl TcAttachments {
    /// Returns the faults of an interface's attachments. A quick check only finds tcx links that
    /// are detached or behind another program.
    pub(crate) fn damage(
        &self,
        programs: &Programs,
        interface: &Interface,
        quick: bool,
    ) -> io::Result<Vec<Damage>> {
        let by_link = self.mode == Attachment::Detect && has_tcx(interface.index);
        let mut found = Vec::new();
        for (egress, _) in DIRECTIONS {
            let program = program_of(interface, egress);
            let Some(program) = program.and_then(|program| programs.fd(&program)) else {
                continue;
            };
            let id = (!quick).then(|| program_id(program)).transpose()?;
            let what = match id {
                _ if by_link => self.damage_of_link(interface.index, egress, id)?,
                Some(id) => damage_of_filter(self.generation, interface.index, egress, id)?,
                None => None,
            };
            found.extend(what.map(|what| Damage { egress, what }));
        }
        Ok(found)
    }

    /// Returns the fault of a tcx link, if it has one. With `program`, the id of the program that
    /// the link should run, also checks program and pin.
    fn damage_of_link(
        &self,
        index: u32,
        egress: bool,
        program: Option<u32>,
    ) -> io::Result<Option<&'static str>> {
        let Some(link) = self.held.get(&(index, egress)) else {
            return Ok(Some(DETACHED));
        };
        let info = link_info(link)?;
        let chain = tcx(index, egress)?;
        if chain.iter().all(|(_, link)| *link != info.id) {
            return Ok(Some(DETACHED));
        }
        if program.is_some_and(|id| info.program != id) {
            return Ok(Some(REPLACED));
        }
        let first = chain.first().map(|(program, _)| *program);
        let is_first = first == Some(info.program);
        let may_move = self
            .moved
            .get(&(index, egress))
            .is_none_or(|moved| moved.elapsed() > MOVE_AGAIN);
        if !is_first && may_move {
            return Ok(Some(BEHIND));
        }
        let looks_at_pin = program.is_some();
        let unpinned = looks_at_pin && !is_pinned(link, &self.link_path(index, egress));
        Ok(unpinned.then_some(UNPINNED))
    }

    /// Detaches our program from a hook; [`Self::attach`] puts it back in front of all others. The
    /// kernel accepts no program twice at one hook, so for a moment there is none.
    pub(crate) fn leave_hook(&mut self, index: u32, egress: bool) {
        self.moved.insert((index, egress), Instant::now());
        if let Some(link) = self.held.remove(&(index, egress)) {
            // If detaching fails, the program stays where it is.
            _ = detach(link.as_fd());
        }
    }
}

/// Returns the fault of our clsact filter at a hook, if it has one. `program` is the id of the
/// program that the filter should run.
fn damage_of_filter(
    generation: u32,
    index: u32,
    egress: bool,
    program: u32,
) -> io::Result<Option<&'static str>> {
    let handle = u32::from(handle_of(generation));
    let ours = ours(index, egress)?;
    Ok(match ours.iter().find(|filter| filter.handle == handle) {
        None => Some(DETACHED),
        Some(filter) if filter.program != Some(program) => Some(REPLACED),
        Some(_) => None,
    })
}
