// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sockets of this network namespace by cookie: which namespace this is, and closing UDP sockets
//! (SOCK_DESTROY of sock_diag(7)).

use std::{collections::HashSet, io, net::UdpSocket, os::fd::AsRawFd};

use netlink_sys::{Socket, protocols::NETLINK_SOCK_DIAG};
use proxy_common::{Protocol, SocketCookie};

use super::{
    Plain,
    netlink::{ACKNOWLEDGE, ALL, DONE, ERROR, Header, error_in, messages, open, receive},
};

const DUMP: u16 = 20;
const DESTROY: u16 = 21;

/// The kernel's cookie of the calling thread's network namespace; never changes, never used again.
pub fn network_namespace() -> io::Result<u64> {
    // Any socket tells.
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

/// `struct inet_diag_sockid`; ports and addresses in network order.
#[derive(Clone, Copy)]
#[repr(C)]
struct SocketId {
    ports: [u16; 2],
    addresses: [[u32; 4]; 2],
    interface: u32,
    cookie: SocketCookie,
}

/// A message with `struct inet_diag_req_v2`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Request {
    header: Header,
    family: u8,
    protocol: u8,
    extensions: u8,
    _pad: u8,
    states: u32,
    id: SocketId,
}

/// The start of `struct inet_diag_msg`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Described {
    family: u8,
    state: u8,
    _timer: [u8; 2],
    id: SocketId,
}

// SAFETY: repr(C), no padding (all fields lie at multiples of their size), valid for every bit pattern.
unsafe impl Plain for Request {}
// SAFETY: as above.
unsafe impl Plain for Described {}

impl Request {
    fn new(kind: u16, flags: u16, family: u8, id: SocketId) -> Self {
        Self {
            header: Header::of::<Self>(kind, flags),
            family,
            protocol: Protocol::UDP.0,
            extensions: 0,
            _pad: 0,
            states: u32::MAX,
            id,
        }
    }
}

/// What became of sockets that were to be closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Destroyed {
    pub closed: usize,
    /// Refused by the kernel, with the last reason.
    pub refused: Option<i32>,
}

/// Closes the UDP sockets of the calling thread's network namespace that have these cookies; their
/// processes see ECONNABORTED.
pub fn destroy_udp(cookies: &HashSet<SocketCookie>) -> io::Result<Destroyed> {
    let socket = open(NETLINK_SOCK_DIAG)?;
    let mut destroyed = Destroyed::default();
    for family in [libc::AF_INET as u8, libc::AF_INET6 as u8] {
        for id in list(&socket, family)? {
            if !cookies.contains(&id.cookie) {
                continue;
            }
            let request = Request::new(DESTROY, ACKNOWLEDGE, family, id);
            send(&socket, &request)?;
            match acknowledgement(&socket)? {
                0 => destroyed.closed += 1,
                // Closed meanwhile.
                error if -error == libc::ENOENT => {}
                error => destroyed.refused = Some(-error),
            }
        }
    }
    Ok(destroyed)
}

fn send(socket: &Socket, request: &Request) -> io::Result<()> {
    socket.send(request.bytes(), 0).map(drop)
}

/// Every UDP socket of a family.
fn list(socket: &Socket, family: u8) -> io::Result<Vec<SocketId>> {
    let nobody = SocketId {
        ports: [0; 2],
        addresses: [[0; 4]; 2],
        interface: 0,
        cookie: SocketCookie { low: 0, high: 0 },
    };
    send(socket, &Request::new(DUMP, ALL, family, nobody))?;
    let mut found = Vec::new();
    loop {
        for (kind, payload) in messages(&receive(socket)?) {
            match kind {
                DONE => return Ok(found),
                ERROR => return Err(io::Error::from_raw_os_error(-error_in(payload))),
                _ => found.extend(Described::from_bytes(payload).map(|socket| socket.id)),
            }
        }
    }
}

fn acknowledgement(socket: &Socket) -> io::Result<i32> {
    loop {
        for (kind, payload) in messages(&receive(socket)?) {
            if kind == ERROR {
                return Ok(error_in(payload));
            }
        }
    }
}
