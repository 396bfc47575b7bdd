// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Attaches the XDP program to uplinks by pinned links. The links outlive the agent, and their
//! program can be replaced. A foreign program at an interface's XDP hook stays attached. Used by
//! `Datapath`.

use std::{
    collections::BTreeMap,
    fs, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use linux::{
    attach_xdp, attached_xdp, describe_program, detach, get_pinned, link_info, program_id, replace,
};

use super::{
    load::{Programs, UPLINK},
    pin::pin_again,
};
use crate::{
    error::DatapathError,
    maps::pins::{files, if_there, links_of},
    options::XdpMode,
};

#[derive(Debug)]
pub(crate) struct XdpAttachments {
    links: PathBuf,
    /// Links kept open, so that they outlive their pins, and their XDP modes. Key: interface index.
    held: BTreeMap<u32, (OwnedFd, XdpMode)>,
}

/// The reason why the XDP program cannot be attached to an interface.
#[derive(Debug)]
pub enum XdpRefusal {
    /// A foreign program is attached to the XDP hook: its id, and its name if it has one.
    Taken(String),
    /// The kernel or the driver refuses the program.
    Refused(io::Error),
}

impl XdpAttachments {
    /// Starts with the links that an earlier run of the agent left pinned below `home`, a
    /// generation's directory.
    pub(crate) fn adopt(home: &Path) -> Self {
        let mut adopted = Self {
            links: links_of(home),
            held: BTreeMap::new(),
        };
        for (path, index, mode) in pinned(&adopted.links) {
            match get_pinned(&path, false) {
                Ok(link) => _ = adopted.held.insert(index, (link, mode)),
                Err(_) => _ = fs::remove_file(&path),
            }
        }
        adopted
    }

    /// Takes over the links of another generation, whose directory is `home`. From then on they run
    /// our program of this generation.
    pub(crate) fn take_from(&mut self, home: &Path, programs: &Programs) -> io::Result<()> {
        for (path, index, mode) in pinned(&links_of(home)) {
            let link = get_pinned(&path, false)?;
            match programs.fd(UPLINK) {
                // Replacing fails if the interface is gone.
                Some(program) if replace(link.as_fd(), program).is_ok() => {
                    pin_again(&link, &self.path(index, mode))?;
                    self.held.insert(index, (link, mode));
                }
                _ => _ = detach(link.as_fd()),
            }
            if_there(fs::remove_file(&path))?;
        }
        Ok(())
    }

    /// Attaches the program to an interface, or restores the attachment. Idempotent. Returns true
    /// if an attachment in this mode was known but had been detached or ran another program.
    pub(crate) fn attach(
        &mut self,
        programs: &Programs,
        index: u32,
        mode: XdpMode,
    ) -> Result<bool, XdpRefusal> {
        let program = programs
            .require(UPLINK)
            .map_err(|error| XdpRefusal::Refused(io::Error::other(error)))?;
        let mut was_there = false;
        if let Some((link, held_mode)) = self.held.remove(&index) {
            was_there = true;
            let info = link_info(&link).map_err(XdpRefusal::Refused)?;
            if info.is_xdp() && info.ifindex == index && held_mode == mode {
                let path = self.path(index, mode);
                let kept = keep(&link, info.program, program, &path);
                self.held.insert(index, (link, mode));
                return kept.map_err(XdpRefusal::Refused);
            }
            let _ = detach(link.as_fd());
            _ = fs::remove_file(self.path(index, held_mode));
            was_there &= held_mode == mode;
        }
        let link = attach_xdp(program, index, mode == XdpMode::Native).map_err(|error| {
            let taken = matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST));
            match attached_xdp(index) {
                Ok(Some(id)) if taken => XdpRefusal::Taken(describe_program(id)),
                _ => XdpRefusal::Refused(error),
            }
        })?;
        let pinned = pin_again(&link, &self.path(index, mode));
        self.held.insert(index, (link, mode));
        pinned.map_err(XdpRefusal::Refused)?;
        Ok(was_there)
    }

    /// Detaches the program from an interface, which may no longer exist.
    pub(crate) fn detach(&mut self, index: u32) -> Result<(), DatapathError> {
        let Some((link, mode)) = self.held.remove(&index) else {
            return Ok(());
        };
        let _ = detach(link.as_fd());
        let path = self.path(index, mode);
        if_there(fs::remove_file(&path)).map_err(DatapathError::of_file("remove", &path))
    }

    pub(crate) fn indices(&self) -> impl Iterator<Item = u32> {
        self.held.keys().copied()
    }

    fn path(&self, index: u32, mode: XdpMode) -> PathBuf {
        self.links.join(format!("{PREFIX}{index}-{}", mode.name()))
    }
}

/// The prefix of the names of the links' pins.
const PREFIX: &str = "xdp-";

/// Returns the interface's index and the mode of an XDP link, parsed from the name of its pin;
/// `None` if it is no such name.
pub(super) fn of_pin(name: &str) -> Option<(u32, XdpMode)> {
    let (index, mode) = name.strip_prefix(PREFIX)?.split_once('-')?;
    let mode = XdpMode::ALL.into_iter().find(|one| one.name() == mode)?;
    Some((index.parse().ok()?, mode))
}

pub(crate) fn is_xdp_pin(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.and_then(of_pin).is_some()
}

/// Returns the pins of XDP links in a directory: path, interface index and mode. Empty if the
/// directory is missing.
fn pinned(links: &Path) -> Vec<(PathBuf, u32, XdpMode)> {
    let paths = files(links).into_iter();
    let named = paths.filter_map(|path| {
        let (index, mode) = of_pin(path.file_name()?.to_str()?)?;
        Some((path, index, mode))
    });
    named.collect()
}

/// Makes a correctly attached link run `program`, and pins the link. `running` is the id of the
/// program that it ran until now. Returns true if they differ.
fn keep(link: &OwnedFd, running: u32, program: BorrowedFd<'_>, path: &Path) -> io::Result<bool> {
    let is_other = running != program_id(program)?;
    if is_other {
        replace(link.as_fd(), program)?;
    }
    pin_again(link, path)?;
    Ok(is_other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_and_mode_are_parsed_from_the_name_of_an_xdp_pin() {
        assert_eq!(of_pin("xdp-2-native"), Some((2, XdpMode::Native)));
        assert_eq!(of_pin("xdp-12-generic"), Some((12, XdpMode::Generic)));
        for other in ["2-ingress", "xdp-2", "xdp-x-native", "xdp-2-other"] {
            assert_eq!(of_pin(other), None);
        }
    }
}
