// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The network namespace of the calling thread. Called by `agent` and `cli`.

use std::{io, net::UdpSocket, os::fd::AsRawFd};

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
    if result == 0 {
        Ok(cookie)
    } else {
        Err(io::Error::last_os_error())
    }
}
