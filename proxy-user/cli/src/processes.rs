// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the processes that own sockets. The kernel's list of sockets gives the inode of each
//! socket cookie, for one network namespace at a time; the open files in /proc give the process of
//! each inode. Called by `sockets`.

use std::{collections::HashMap, fs};

use linux::{namespaces, socket_inodes};
use serde::Serialize;

/// The process that owns a socket; if several do, the one with the lowest process id.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub(super) struct Process {
    pub(super) name: String,
    pub(super) pid: u32,
}

/// Returns the processes that own sockets. Key: the socket's cookie. Covers this network namespace,
/// or (`everywhere`) those of all processes. Omits what cannot be read: processes of other PID
/// namespaces and, without root, processes of other users.
pub(super) fn owners(everywhere: bool) -> HashMap<u64, Process> {
    let pids = namespaces::pids();
    let mut inodes = socket_inodes().unwrap_or_default();
    if everywhere {
        for namespace in namespaces::others() {
            // A namespace that cannot be entered is skipped.
            inodes.extend(namespaces::inside(&namespace, socket_inodes).unwrap_or_default());
        }
    }
    let by_inode: HashMap<u32, u64> = inodes
        .into_iter()
        .map(|(cookie, inode)| (inode, cookie))
        .collect();
    let mut owners = HashMap::new();
    for pid in pids {
        let mut name = None;
        for inode in sockets_of(pid) {
            let Some(cookie) = by_inode.get(&inode) else {
                continue;
            };
            let name = name.get_or_insert_with(|| name_of(pid));
            owners.entry(*cookie).or_insert_with(|| Process {
                name: name.clone(),
                pid,
            });
        }
    }
    owners
}

/// Returns the inode of each socket of a process, from the links in /proc/PID/fd.
fn sockets_of(pid: u32) -> impl Iterator<Item = u32> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter();
    entries.flatten().flatten().filter_map(|entry| {
        let link = fs::read_link(entry.path()).ok()?;
        let number = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
        number.parse().ok()
    })
}

fn name_of(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use super::*;

    #[test]
    fn sockets_of_this_process_are_found_with_their_owner() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let datagrams = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let owners = owners(false);
        for cookie in [
            socket2::SockRef::from(&listener).cookie(),
            socket2::SockRef::from(&datagrams).cookie(),
        ] {
            let owner = owners.get(&cookie.expect("a cookie"));
            let owner = owner.expect("it is found");
            assert_eq!(owner.pid, std::process::id());
            assert!(!owner.name.is_empty());
        }
    }
}
