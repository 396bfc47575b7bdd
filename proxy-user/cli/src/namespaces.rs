// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the network namespaces of this host that are visible to this process: those of processes,
//! and those that have a name. Called by `processes` and `affinity`.

use std::{
    collections::{HashMap, HashSet},
    fs::{self, File},
    io,
    net::IpAddr,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    thread,
};

use linux::network_namespace;
use nix::sched::{CloneFlags, setns};

/// The directory where `ip netns` keeps network namespaces that have a name.
const NAMED: &str = "/run/netns";

/// Returns one file for each network namespace except that of this process. [`inside`] can enter
/// it.
pub(super) fn others() -> Vec<PathBuf> {
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
pub(super) fn inside<T: Send>(
    file: &Path,
    what: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
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

/// Returns the addresses of each network namespace. Key: the namespace's cookie (the kernel's id).
/// Omits loopback and link-local addresses, and namespaces that cannot be entered.
pub(super) fn addresses() -> HashMap<u64, Vec<IpAddr>> {
    let here = || Ok((network_namespace()?, own_addresses()?));
    let others = others();
    let others = others.iter().filter_map(|file| inside(file, here).ok());
    here().into_iter().chain(others).collect()
}

fn own_addresses() -> io::Result<Vec<IpAddr>> {
    let mut found = Vec::new();
    for interface in nix::ifaddrs::getifaddrs()? {
        let Some(address) = interface.address else {
            continue;
        };
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
        let v6 = || address.as_sockaddr_in6().map(|v6| IpAddr::from(v6.ip()));
        let is_reached = |ip: &IpAddr| match ip {
            IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local(),
            IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
        };
        found.extend(v4.or_else(v6).filter(is_reached));
    }
    found.sort_unstable();
    Ok(found)
}

fn identity(file: &Path) -> Option<(u64, u64)> {
    let metadata = fs::metadata(file).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

/// Returns the ids of all processes that are visible in /proc, in ascending order.
pub(super) fn pids() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut pids: Vec<_> = pids.collect();
    pids.sort_unstable();
    pids
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_network_namespace_of_this_process_is_found() {
        let own = network_namespace().expect("a cookie");
        let addresses = addresses();
        let own = addresses.get(&own).expect("it is there");
        assert!(own.iter().all(|address| !address.is_loopback()));
    }
}
