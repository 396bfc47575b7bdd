// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The clsact qdiscs that filters need where the kernel lacks tcx. Creates these qdiscs. Removes a
//! qdisc of ours with our last filter, if nobody else uses it. While an interface has clsact,
//! nobody can add the qdisc `ingress`, as the CNI plugin `bandwidth` does. Used by `tc` and
//! `cleanup`.

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use aya::programs::tc;
use linux::{Filter, filter_qdiscs, filters, has_filters, remove_clsact};

/// The suffix of a mark's name, after an interface's index. A mark is a file that says that we
/// created the qdisc of this interface. It is a dangling symbolic link, because a BPF file system
/// can hold those.
pub(super) const MARK: &str = "-clsact";

/// Adds a clsact qdisc to an interface unless it has one. `is_ours` returns whether the interface
/// has filters of ours.
pub(super) fn make(links: &Path, index: u32, name: &str, is_ours: impl FnOnce() -> bool) {
    let mark = mark(links, index);
    // If this fails, the later attaching reports the reason.
    if tc::qdisc_add_clsact(name).is_ok() {
        // Without a mark the qdisc is never removed, which harms nobody.
        _ = symlink("clsact", mark);
    } else if !is_ours() {
        // The mark was left by another interface that had this index.
        _ = fs::remove_file(mark);
    }
}

/// Removes the qdisc of an interface if it is ours and has no filters; true if it was removed.
pub(super) fn remove(links: &Path, index: u32) -> io::Result<bool> {
    let mark = mark(links, index);
    if fs::symlink_metadata(&mark).is_err() {
        return Ok(false);
    }
    let has_one = filter_qdiscs()?.get(&index) == Some(&true);
    let removed = has_one && !has_filters(index)?;
    if removed {
        remove_clsact(index)?;
    }
    fs::remove_file(&mark)?;
    Ok(removed)
}

/// Returns two answers: whether [`remove`] would remove the interface's qdisc once our filters are
/// gone, and whether it would remove a mark.
pub(super) fn would_go(
    links: &Path,
    index: u32,
    is_ours: impl Fn(&Filter) -> bool,
) -> (bool, bool) {
    if fs::symlink_metadata(mark(links, index)).is_err() {
        return (false, false);
    }
    let has_one = filter_qdiscs().is_ok_and(|found| found.get(&index) == Some(&true));
    let is_free = [false, true]
        .into_iter()
        .all(|egress| filters(index, egress).is_ok_and(|all| all.iter().all(&is_ours)));
    (has_one && is_free, true)
}

fn mark(links: &Path, index: u32) -> PathBuf {
    links.join(format!("{index}{MARK}"))
}
