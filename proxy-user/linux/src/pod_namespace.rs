// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Network namespaces of pods: found by the interface that leads to the pod, or by inode number,
//! and entered. Needs the host's PID namespace to see pods' processes. Called by `portolan explain
//! --follow`.

use std::{
    collections::HashSet,
    fs::{self, File},
    io,
    os::{
        fd::{AsFd, AsRawFd},
        unix::fs::MetadataExt,
    },
    path::PathBuf,
    thread,
};

use netlink_sys::protocols::NETLINK_ROUTE;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::{
    netlink::{Connection, array, encode, number},
    route::{LINK_HEADER, ask_link},
};

/// Where container runtimes and `ip netns` bind network namespaces.
const BOUND: &str = "/run/netns";

/// A network namespace.
pub struct PodNamespace {
    file: File,
    /// A process in it; None if none is visible.
    pub process: Option<i32>,
}

impl PodNamespace {
    /// Finds the namespace in which the other end of an interface is; None if it is this one, or if
    /// nothing visible leads there. `interface`: index of one end of a veth or netkit pair.
    pub fn behind(interface: u32) -> io::Result<Option<Self>> {
        const LINK_NAMESPACE: u16 = 37;
        let id = ask_link(interface, |answer| {
            number(answer.get(LINK_HEADER..)?, LINK_NAMESPACE)
        })?;
        let Some(id) = id else {
            return Ok(None);
        };
        let connection = Connection::open(NETLINK_ROUTE)?;
        find(|file, _| namespace_id(&connection, file).ok().flatten() == Some(id))
    }

    /// Finds the namespace with this inode number; None if nothing visible leads there.
    pub fn with_inode(inode: u32) -> io::Result<Option<Self>> {
        find(|_, known| known == u64::from(inode))
    }

    /// Returns the inode number, by which programs at tracepoints know the namespace.
    pub fn inode(&self) -> io::Result<u32> {
        Ok(self.file.metadata()?.ino() as u32)
    }

    /// Runs `work` in the namespace, on a thread of its own.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        let entered = thread::scope(|scope| {
            let inside = scope.spawn(|| {
                move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network))?;
                Ok(work())
            });
            inside.join()
        });
        entered.unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
    }
}

/// Returns the inode number of this process's own network namespace.
pub fn own_namespace_inode() -> io::Result<u32> {
    Ok(fs::metadata("/proc/self/ns/net")?.ino() as u32)
}

/// Finds a namespace among those of visible processes and those that are bound. `is_it` gets the
/// open file and the inode number.
fn find(is_it: impl Fn(&File, u64) -> bool) -> io::Result<Option<PodNamespace>> {
    let mut seen = HashSet::new();
    let mut open = |path: PathBuf| {
        let file = File::open(path).ok()?;
        let inode = file.metadata().ok()?.ino();
        (seen.insert(inode) && is_it(&file, inode)).then_some(file)
    };
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(process) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        if let Some(file) = open(entry.path().join("ns/net")) {
            let process = Some(process);
            return Ok(Some(PodNamespace { file, process }));
        }
    }
    let bound = fs::read_dir(BOUND).into_iter().flatten().flatten();
    let found = bound.filter_map(|entry| open(entry.path())).next();
    Ok(found.map(|file| PodNamespace {
        file,
        process: None,
    }))
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
    fn a_namespace_is_found_by_its_inode_and_entered() {
        let own = own_namespace_inode().expect("proc");
        let found = PodNamespace::with_inode(own).expect("proc");
        let found = found.expect("this process is in it");
        assert!(found.process.is_some());
        assert_eq!(found.inode().expect("an inode"), own);
        assert!(PodNamespace::with_inode(1).expect("proc").is_none());
    }

    #[test]
    fn loopback_leads_to_no_other_namespace() {
        assert!(PodNamespace::behind(1).expect("an answer").is_none());
    }
}
