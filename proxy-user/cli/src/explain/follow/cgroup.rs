// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The cgroup of a process: its folder, and opening sockets in it, because the socket hooks of a
//! cgroup see the sockets that were opened there.

use std::{fs, path::PathBuf};

use datapath::cgroup_root;
use rustix::thread::gettid;

/// The folder of a process's cgroup; None stands for the calling thread.
pub(super) fn of(process: Option<i32>) -> Option<PathBuf> {
    let process = process.map_or_else(|| "thread-self".to_owned(), |process| process.to_string());
    let text = fs::read_to_string(format!("/proc/{process}/cgroup")).ok()?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(cgroup_root().ok()??.join(path))
}

/// Runs `work` while this process, or at least this thread, is in the cgroup of another one. Stays
/// where it is if that is not possible.
pub(super) fn inside<T>(process: Option<i32>, work: impl FnOnce() -> T) -> T {
    let own = of(None);
    let there = process.and_then(|process| of(Some(process)));
    let enter = |folder: &PathBuf| {
        let enter = |file: &str, id: String| fs::write(folder.join(file), id);
        // A threaded cgroup takes threads of its own domain only.
        enter("cgroup.procs", std::process::id().to_string())
            .or_else(|_| enter("cgroup.threads", gettid().as_raw_nonzero().to_string()))
    };
    let moved = there.filter(|there| own.is_some() && enter(there).is_ok());
    let result = work();
    if let (Some(_), Some(own)) = (moved, own) {
        // If this fails, the process ends soon in any case.
        _ = enter(&own);
    }
    result
}
