// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What can be wrong with an attachment. Found here and by `hooks`, put right by `Datapath`.

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

/// A hook where ours was moved to the front stays as it is for so long when somebody comes before
/// ours again: moving it leaves a moment without it, and two who move forever serve nobody.
const MOVE_AGAIN: Duration = Duration::from_secs(600);

/// Something wrong at one hook.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Damage {
    /// Our program is not there.
    Detached { egress: bool },
    /// Another program runs in its place.
    Replaced { egress: bool },
    /// Another program has come before it, and may hide packets from it.
    Behind { egress: bool },
    /// It is there, and would go with the agent.
    Unpinned { egress: bool },
}

impl Damage {
    /// For an operator.
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
    /// What is wrong with an interface's attachments. A quick look leaves out what only a restart
    /// would notice.
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

    /// What is wrong with a link; with the id of its program, also that and the pin.
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

    /// Detaches ours at a hook; [`Self::attach`] puts it back in front of all others. The kernel
    /// takes no program twice at one hook, so for a moment there is none.
    pub(crate) fn leave_hook(&mut self, index: u32, egress: bool) {
        self.moved.insert((index, egress), Instant::now());
        if let Some(link) = self.held.remove(&(index, egress)) {
            // Not detached, it stays where it is.
            _ = detach(link.as_fd());
        }
    }
}

/// What is wrong with our filter at a hook.
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
