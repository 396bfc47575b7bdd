// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reconnects sockets of other processes: a copy of the descriptor (pidfd_getfd(2), Linux 5.6) is
//! the same socket. Needs the host's PID namespace and CAP_SYS_PTRACE. Called by `sock_diag`.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    net::{IpAddr, SocketAddr},
    os::fd::OwnedFd,
};

use rustix::{
    fs::{FileType, fstat},
    net::{connect, getpeername, sockopt::socket_cookie},
    process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open},
};

/// A process that has a socket, and the number of the socket's descriptor in that process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Holder {
    pid: i32,
    descriptor: i32,
}

/// Returns, for each of these sockets (by inode), a process that has the socket. Sockets whose
/// processes are invisible from here are missing.
pub(super) fn holders(inodes: &HashSet<u32>) -> HashMap<u32, Holder> {
    let mut found = HashMap::new();
    for pid in numbers("/proc").into_iter().flatten() {
        let sockets = match sockets_of(pid) {
            Ok(sockets) => sockets,
            // /proc/PID/fd of another user's process is closed to root without CAP_DAC_READ_SEARCH.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => by_copies(pid),
            Err(_) => continue,
        };
        for (descriptor, inode) in sockets {
            if inodes.contains(&inode) {
                found.entry(inode).or_insert(Holder { pid, descriptor });
            }
        }
    }
    found
}

/// Returns descriptor number and inode of each socket of a process, from the links in /proc/PID/fd.
pub fn sockets_of(pid: i32) -> io::Result<Vec<(i32, u32)>> {
    let folder = format!("/proc/{pid}/fd");
    let descriptors = numbers(&folder)?.into_iter();
    let sockets = descriptors.filter_map(|descriptor| {
        let link = fs::read_link(format!("{folder}/{descriptor}")).ok()?;
        Some((descriptor, inode_in(link.to_str()?)?))
    });
    Ok(sockets.collect())
}

/// Returns the same as [`sockets_of`], by copying each descriptor up to the size of the process's
/// table.
fn by_copies(pid: i32) -> Vec<(i32, u32)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let size = status
        .lines()
        .find_map(|line| line.strip_prefix("FDSize:")?.trim().parse().ok());
    let sockets = (0..size.unwrap_or(0)).filter_map(|descriptor| {
        let stat = fstat(copy_of(Holder { pid, descriptor }).ok()?).ok()?;
        let is_socket = FileType::from_raw_mode(stat.st_mode) == FileType::Socket;
        is_socket.then_some((descriptor, stat.st_ino as u32))
    });
    sockets.collect()
}

fn numbers(folder: &str) -> io::Result<Vec<i32>> {
    let entries = fs::read_dir(folder)?.flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    Ok(numbers.collect())
}

/// Returns the inode in a link of /proc/PID/fd; `None` if it leads to no socket.
fn inode_in(link: &str) -> Option<u32> {
    let number = link.strip_prefix("socket:[")?.strip_suffix(']')?;
    number.parse().ok()
}

/// Connects the socket with this cookie to `to`, as an IPv4-mapped address if `is_v6` and `to` is
/// IPv4. The socket keeps its source port. Returns false, and leaves the socket alone, if its peer
/// is neither `from` nor `to` (which the hooks may show instead of `from`).
pub(super) fn reconnect(
    holder: Holder,
    cookie: u64,
    is_v6: bool,
    from: SocketAddr,
    to: SocketAddr,
) -> io::Result<bool> {
    let socket = copy_of(holder)?;
    // The descriptor's number may belong to another socket by now.
    if socket_cookie(&socket)? != cookie {
        return Err(io::ErrorKind::NotFound.into());
    }
    let peer = getpeername(&socket).ok().flatten();
    let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
    let is_there = peer.is_some_and(|peer| {
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        peer == from || peer == to
    });
    if is_there {
        let ip = match to.ip() {
            IpAddr::V4(v4) if is_v6 => v4.to_ipv6_mapped().into(),
            ip => ip,
        };
        connect(&socket, &SocketAddr::new(ip, to.port()))?;
    }
    Ok(is_there)
}

fn copy_of(holder: Holder) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(holder.pid).ok_or(io::ErrorKind::NotFound)?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    Ok(pidfd_getfd(
        &process,
        holder.descriptor,
        PidfdGetfdFlags::empty(),
    )?)
}

#[cfg(test)]
mod tests {
    use std::{net::UdpSocket, os::fd::AsRawFd};

    use super::*;

    #[test]
    fn only_links_to_sockets_contain_a_socket_inode() {
        assert_eq!(inode_in("socket:[1234]"), Some(1234));
        for other in ["pipe:[1234]", "socket:[]", "socket:[x]", "/dev/null"] {
            assert_eq!(inode_in(other), None, "{other}");
        }
    }

    #[test]
    fn a_socket_is_found_and_reconnected_only_if_cookie_and_peer_match() {
        let [socket, one, two] =
            [(); 3].map(|()| UdpSocket::bind("127.0.0.1:0").expect("a socket"));
        socket
            .connect(one.local_addr().expect("an address"))
            .expect("connected");
        let link = fs::read_link(format!("/proc/self/fd/{}", socket.as_raw_fd()));
        let inode = link
            .ok()
            .and_then(|link| inode_in(link.to_str()?))
            .expect("an inode");
        let found = holders(&HashSet::from([inode]));
        let holder = found[&inode];
        let pid = std::process::id().cast_signed();
        assert_eq!(holder.pid, pid);
        assert!(by_copies(pid).contains(&(socket.as_raw_fd(), inode)));
        let own = socket.local_addr().expect("an address");
        let cookie = socket_cookie(&socket).expect("a cookie");
        let to = two.local_addr().expect("an address");
        let from = one.local_addr().expect("an address");
        let other = reconnect(holder, cookie + 1, false, from, to).expect_err("another socket");
        assert_eq!(other.kind(), io::ErrorKind::NotFound);
        assert!(reconnect(holder, cookie, false, from, to).expect("connected"));
        assert_eq!(socket.peer_addr().expect("a peer"), to);
        assert_eq!(
            socket.local_addr().expect("an address"),
            own,
            "its own port"
        );
        let left = reconnect(holder, cookie, false, from, from).expect("asked");
        assert!(!left, "its process has connected it elsewhere");
        assert_eq!(socket.peer_addr().expect("a peer"), to);
    }
}
