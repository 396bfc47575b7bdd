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

use aya::programs::tc::qdisc_add_clsact;
use linux::{filter_qdiscs, filters, has_filters, remove_clsact};

use super::tc::{has_ours, is_ours};

/// Adds a clsact qdisc to an interface unless it has one.
pub(super) fn make(links: &Path, index: u32, name: &str) {
    let mark = mark(links, index);
    // If this fails, the later attaching reports the reason.
    if qdisc_add_clsact(name).is_ok() {
        // Without a mark the qdisc is never removed, which harms nobody.
        _ = symlink("clsact", mark);
    } else if !has_ours(index, false) && !has_ours(index, true) {
        // The mark was left by another interface that had this index.
        _ = fs::remove_file(mark);
    }
}

/// Removes the qdisc of an interface if it is ours and has no filters; true if it was removed. If
/// `dry`, returns whether it would be once our filters are gone.
pub(super) fn remove(links: &Path, index: u32, dry: bool) -> io::Result<bool> {
    let mark = mark(links, index);
    if fs::symlink_metadata(&mark).is_err() {
        return Ok(false);
    }
    let has_one = filter_qdiscs().map(|all| all.get(&index) == Some(&true));
    if dry {
        let is_free = |egress| filters(index, egress).is_ok_and(|all| all.iter().all(is_ours));
        return Ok(has_one.unwrap_or(false) && is_free(false) && is_free(true));
    }
    let removed = has_one? && !has_filters(index)?;
    if removed {
        remove_clsact(index)?;
    }
    fs::remove_file(&mark)?;
    Ok(removed)
}

fn mark(links: &Path, index: u32) -> PathBuf {
    links.join(mark_of(index))
}

/// Returns the name of the mark of an interface: a file that says that we created its qdisc. It is
/// a dangling symbolic link, because a BPF file system can hold those.
pub(crate) fn mark_of(index: u32) -> String {
    format!("{index}-clsact")
}
