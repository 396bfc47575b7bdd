// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What can be wrong with an attachment. Found by `tc` and `hooks`, put right by `Datapath`.

use std::{fs, io, os::fd::OwnedFd, path::Path};

use crate::datapath::sys::{get_pinned, link_info, pin};

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

/// Whether this very link is pinned at a path.
pub(super) fn is_pinned(link: &OwnedFd, path: &Path) -> bool {
    let id = |link: &OwnedFd| link_info(link).ok().map(|info| info.id);
    get_pinned(path, false).is_ok_and(|pinned| id(&pinned) == id(link))
}

/// Pins a link at a path, in place of whatever is there.
pub(super) fn pin_again(link: &OwnedFd, path: &Path) -> io::Result<()> {
    if is_pinned(link, path) {
        return Ok(());
    }
    remove_file(path)?;
    pin(link, path)
}

/// Removes a file that may be gone.
pub(super) fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
