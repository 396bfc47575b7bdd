// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pins of links: checks them and pins links again. Used by `tc`, `hooks` and `check`.

use std::{
    collections::HashMap,
    fs,
    hash::Hash,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use linux::{LinkInfo, get_pinned, link_info, pin, replace};

use crate::maps::pins::if_there;

/// Makes the link at a hook run a program: the one that is open in `held` or pinned at a path, if
/// `is_it` is true for it, else a new one. It is pinned, and kept open in any case: even without a
/// pin it works as long as the agent runs.
pub(super) fn keep_or_attach<K: Copy + Eq + Hash>(
    held: &mut HashMap<K, OwnedFd>,
    key: K,
    path: &Path,
    program: BorrowedFd<'_>,
    is_it: impl Fn(&LinkInfo) -> io::Result<bool>,
    attach: impl FnOnce() -> io::Result<OwnedFd>,
) -> io::Result<()> {
    let open = held.remove(&key);
    for link in open.into_iter().chain(get_pinned(path, false).ok()) {
        // Somebody may have pinned another object here.
        let Ok(info) = link_info(&link) else { continue };
        if is_it(&info)? {
            let link = held.entry(key).insert_entry(link);
            replace(link.get().as_fd(), program)?;
            return pin_again(link.get(), path);
        }
    }
    let link = held.entry(key).insert_entry(attach()?);
    pin_again(link.get(), path)
}

/// True if exactly this link is pinned at a path.
pub(super) fn is_pinned(link: &OwnedFd, path: &Path) -> bool {
    let id = |link: &OwnedFd| link_info(link).ok().map(|info| info.id);
    get_pinned(path, false).is_ok_and(|pinned| id(&pinned) == id(link))
}

/// Makes this link be pinned at a path, and replaces any other file there.
pub(super) fn pin_again(link: &OwnedFd, path: &Path) -> io::Result<()> {
    if is_pinned(link, path) {
        return Ok(());
    }
    if_there(fs::remove_file(path))?;
    pin(link, path)
}
