// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the faults of tc attachments, such as a detached program. `hooks` does so for the socket
//! hooks. `Datapath` repairs them.

use std::{
    io,
    os::fd::AsFd,
    time::{Duration, Instant},
};

use linux::{detach, interfaces::Interface, link_info, program_id, query_tcx, tcx_programs};

use super::{
    load::Programs,
    pin::is_pinned,
    probe::has_tcx,
    tc::{DIRECTIONS, TcAttachments, handle_of, ours, program_of},
};
use crate::options::Attachment;

/// The time for which a hook is left alone after our program was moved to its front, even if a
/// foreign program comes first again. Moving leaves a moment without our program, and two agents
/// that keep moving their programs would serve no client.
const MOVE_AGAIN: Duration = Duration::from_secs(600);

/// A fault of our attachment at one tc hook: at egress if `egress` is true, else at ingress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Damage {
    /// Our program is not attached.
    Detached { egress: bool },
    /// Another program is attached in place of ours.
    Replaced { egress: bool },
    /// Another program comes before ours and may hide packets from it.
    Behind { egress: bool },
    /// Our program is attached, but would be detached when the agent stops.
    Unpinned { egress: bool },
}

impl Damage {
    /// Returns a text that tells an operator what had happened to the program.
    pub(crate) fn describe(self) -> String {
        let (what, egress) = match self {
            Self::Detached { egress } => ("was detached", egress),
            Self::Replaced { egress } => ("was replaced by another program", egress),
            Self::Behind { egress } => ("had another program before it", egress),
            Self::Unpinned { egress } => ("had lost its pin", egress),
        };
        let hook = if egress { "egress" } else { "ingress" };
        format!("portolan's program at {hook} {what}")
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
        for (egress, direction, _) in DIRECTIONS {
            let program = program_of(interface, egress, direction);
            let Some(program) = program.and_then(|program| programs.fd(&program)) else {
                continue;
            };
            found.extend(if by_link {
                let id = (!quick).then(|| program_id(program)).transpose()?;
                self.damage_of_link(interface.index, egress, id)?
            } else if quick {
                None
            } else {
                damage_of_filter(
                    self.generation,
                    interface.index,
                    egress,
                    program_id(program)?,
                )?
            });
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
    ) -> io::Result<Option<Damage>> {
        let Some(link) = self.held.get(&(index, egress)) else {
            return Ok(Some(Damage::Detached { egress }));
        };
        let info = link_info(link)?;
        let links = query_tcx(index, egress)?;
        if !links.contains(&info.id) {
            return Ok(Some(Damage::Detached { egress }));
        }
        if program.is_some_and(|id| info.program != id) {
            return Ok(Some(Damage::Replaced { egress }));
        }
        let is_first = tcx_programs(index, egress)?.first() == Some(&info.program);
        let may_move = self
            .moved
            .get(&(index, egress))
            .is_none_or(|moved| moved.elapsed() > MOVE_AGAIN);
        if !is_first && may_move {
            return Ok(Some(Damage::Behind { egress }));
        }
        let looks_at_pin = program.is_some();
        let unpinned = looks_at_pin && !is_pinned(link, &self.link_path(index, egress));
        Ok(unpinned.then_some(Damage::Unpinned { egress }))
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
) -> io::Result<Option<Damage>> {
    let handle = u32::from(handle_of(generation));
    let ours = ours(index, egress)?;
    Ok(match ours.iter().find(|filter| filter.handle == handle) {
        None => Some(Damage::Detached { egress }),
        Some(filter) if filter.program != Some(program) => Some(Damage::Replaced { egress }),
        Some(_) => None,
    })
}
