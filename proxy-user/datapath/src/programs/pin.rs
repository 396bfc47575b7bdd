// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pins of links: checks them and pins links again. Used by `tc`, `hooks` and `check`.

use std::{fs, io, os::fd::OwnedFd, path::Path};

use linux::{get_pinned, link_info, pin};

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
    remove_file(path)?;
    pin(link, path)
}

/// Removes a file; it is no error if the file is missing.
pub(super) fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
