// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the network namespaces of this host that are visible to this process: those of processes,
//! and those that have a name. Called by the command line and `sock_diag`.

use std::{
    collections::HashSet,
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    thread,
};

use nix::sched::{CloneFlags, setns};

/// The directory where `ip netns` keeps network namespaces that have a name.
const NAMED: &str = "/run/netns";

/// Returns one file for each network namespace except that of this process. [`inside`] can enter
/// it.
pub fn others() -> Vec<PathBuf> {
    let own = identity(Path::new("/proc/self/ns/net"));
    let mut seen: HashSet<_> = own.into_iter().collect();
    let named = fs::read_dir(NAMED).into_iter().flatten().flatten();
    let files = pids()
        .into_iter()
        .map(|pid| format!("/proc/{pid}/ns/net").into())
        .chain(named.map(|entry| entry.path()));
    files
        .filter(|file| identity(file).is_some_and(|namespace| seen.insert(namespace)))
        .collect()
}

/// Runs a function in the network namespace of `file`, and returns its result. A new thread enters
/// the namespace and ends there.
pub fn inside<T: Send>(file: &Path, what: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let namespace = File::open(file)?;
    let done = thread::scope(|scope| {
        let inside = scope.spawn(|| {
            setns(&namespace, CloneFlags::CLONE_NEWNET)?;
            what()
        });
        inside.join()
    });
    done.unwrap_or_else(|_| Err(io::Error::other("the thread failed")))
}

fn identity(file: &Path) -> Option<(u64, u64)> {
    let metadata = fs::metadata(file).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

/// Returns the ids of all processes that are visible in /proc, in ascending order.
pub fn pids() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut pids: Vec<_> = pids.collect();
    pids.sort_unstable();
    pids
}
