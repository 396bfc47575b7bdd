// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Network namespaces: this thread's, those of this host that are visible to this process, and
//! those of pods, found by the interface that leads to the pod, or by inode number. Needs the
//! host's PID namespace to see pods' processes. Called by `agent`, the command line and
//! `sock_diag`.

use std::{
    collections::HashSet,
    fs::{self, File},
    io,
    net::UdpSocket,
    os::{fd::AsRawFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
    thread,
};

use netlink_sys::protocols::NETLINK_ROUTE;
use nix::{
    errno::Errno,
    sched::{CloneFlags, setns},
};

use super::{
    netlink::{Connection, array, encode, number},
    route::{LINK_HEADER, ask_link},
};

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

/// Returns the cookie of the calling thread's network namespace: a number that never changes and is
/// never reused.
pub fn network_namespace() -> io::Result<u64> {
    // Any socket of the namespace will do.
    let socket = UdpSocket::bind("127.0.0.1:0").or_else(|_| UdpSocket::bind("[::1]:0"))?;
    let mut cookie = 0_u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `cookie`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    Errno::result(result)?;
    Ok(cookie)
}

/// A network namespace other than this process's own.
pub struct PodNamespace(PathBuf);

impl PodNamespace {
    /// Finds the namespace in which the other end of an interface is; None if it is this one. That
    /// nothing visible leads there is `PermissionDenied`: who sees all of the host's processes
    /// finds it. `interface`: index of one end of a veth or netkit pair.
    pub fn behind(interface: u32) -> io::Result<Option<Self>> {
        const LINK_NAMESPACE: u16 = 37;
        let id = ask_link(interface, |answer| {
            number(answer.get(LINK_HEADER..)?, LINK_NAMESPACE)
        })?;
        let Some(id) = id else {
            return Ok(None);
        };
        let connection = Connection::open(NETLINK_ROUTE)?;
        let is_it = |path: &PathBuf| {
            let file = File::open(path);
            file.and_then(|file| namespace_id(&connection, &file))
                .is_ok_and(|known| known == Some(id))
        };
        let found = others().into_iter().find(is_it).map(Self);
        found
            .map(Some)
            .ok_or(io::ErrorKind::PermissionDenied.into())
    }

    /// Finds the namespace with this inode number; None if nothing visible leads there.
    pub fn with_inode(inode: u32) -> Option<Self> {
        let mut all = others().into_iter().map(Self);
        all.find(|one| one.inode().is_ok_and(|known| known == inode))
    }

    /// Returns the inode number, by which programs at tracepoints know the namespace.
    pub fn inode(&self) -> io::Result<u32> {
        Ok(fs::metadata(&self.0)?.ino() as u32)
    }

    /// Returns a process in the namespace; None if none is visible.
    pub fn process(&self) -> Option<i32> {
        let path = self.0.strip_prefix("/proc").ok()?;
        path.iter().next()?.to_str()?.parse().ok()
    }

    /// Runs `work` in the namespace, on a thread of its own.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        inside(&self.0, work)
    }
}

/// Returns the inode number of this process's own network namespace.
pub fn own_namespace_inode() -> io::Result<u32> {
    Ok(fs::metadata("/proc/self/ns/net")?.ino() as u32)
}

/// Returns the number by which this namespace knows another one; None if it does not know it.
fn namespace_id(connection: &Connection, file: &File) -> io::Result<Option<u32>> {
    const GET_NAMESPACE_ID: u16 = 90;
    const ID: u16 = 1;
    const FD: u16 = 3;
    /// Length of `struct rtgenmsg`, padded.
    const HEADER: usize = 4;
    let mut request = vec![0; HEADER];
    request.extend(encode(FD, &(file.as_raw_fd() as u32).to_ne_bytes()));
    let id = connection.ask_one(GET_NAMESPACE_ID, &request, |answer| {
        array(answer.get(HEADER..)?, ID).map(i32::from_ne_bytes)
    })?;
    Ok(id.and_then(|id| u32::try_from(id).ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_leads_to_no_other_namespace() {
        assert!(PodNamespace::behind(1).expect("an answer").is_none());
    }

    #[test]
    fn this_process_is_in_its_own_namespace_and_no_other_has_its_number() {
        let own = own_namespace_inode().expect("proc");
        assert!(own > 1 && PodNamespace::with_inode(own).is_none());
    }
}
