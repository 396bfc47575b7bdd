// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Closes sockets, which are found by their cookies, and lists sockets. By sock_diag(7). Called by
//! `datapath::sweep` and the command line.

use std::{
    collections::HashSet,
    io,
    net::{Ipv6Addr, SocketAddr},
};

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP};
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use proxy_common::{Protocol, SocketCookie};

use super::{
    answers::none_if,
    namespaces::{inside, others},
    netlink::Connection,
    plain::Plain,
};

const DUMP: u16 = 20;
const DESTROY: u16 = 21;

/// `struct inet_diag_sockid`; ports and addresses are in network byte order.
#[derive(Clone, Copy)]
#[repr(C)]
struct SocketId {
    ports: [u16; 2],
    addresses: [[u8; 16]; 2],
    interface: u32,
    cookie: SocketCookie,
}

/// `struct inet_diag_req_v2`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Request {
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
    _expires: u32,
    _queues: [u32; 2],
    _user: u32,
    inode: u32,
}

// SAFETY: repr(C), no padding (all fields lie at multiples of their size), valid for every bit
// pattern.
unsafe impl Plain for Request {}
// SAFETY: as above.
unsafe impl Plain for Described {}

impl SocketId {
    /// Returns the address and port to which the socket is connected; an IPv4-mapped address as
    /// IPv4.
    fn peer(&self, family: u8) -> SocketAddr {
        let [_, address] = self.addresses;
        let [_, port] = self.ports;
        let ip = match address {
            [a, b, c, d, ..] if family == libc::AF_INET as u8 => [a, b, c, d].into(),
            octets => Ipv6Addr::from(octets).to_canonical(),
        };
        SocketAddr::new(ip, u16::from_be(port))
    }
}

impl Request {
    fn new(family: u8, protocol: Protocol, id: SocketId) -> Self {
        Self {
            family,
            protocol: protocol.0,
            extensions: 0,
            _pad: 0,
            states: u32::MAX,
            id,
        }
    }
}

/// A socket that is to be closed: its cookie, and the address to which it is connected.
pub type ConnectedSocket = (SocketCookie, SocketAddr);

/// Closes UDP sockets of the calling thread's network namespace. Their processes see ECONNABORTED
/// when they receive, and EDESTADDRREQ when they send first. A socket is found by its cookie and
/// peer address: one that is connected elsewhere by now, or not connected, is left alone. Returns
/// how many were closed.
pub fn close_udp(lost: &HashSet<ConnectedSocket>) -> io::Result<usize> {
    close_here(Protocol::UDP, lost)
}

/// Closes TCP sockets, in this network namespace and in others that can be entered (which needs
/// CAP_SYS_ADMIN). Their processes see ECONNABORTED, and their peers get a reset. A socket is found
/// by its cookie and peer address. Returns how many were closed.
pub fn close_tcp(gone: &HashSet<ConnectedSocket>) -> io::Result<usize> {
    let mut closed = close_here(Protocol::TCP, gone)?;
    if closed < gone.len() {
        for namespace in others() {
            // It may have ended, or this process may not enter it.
            closed += inside(&namespace, || close_here(Protocol::TCP, gone)).unwrap_or(0);
        }
    }
    Ok(closed)
}

/// Closes all of these sockets that the kernel lets go, and returns its last refusal if there was
/// one.
fn close_here(protocol: Protocol, wanted: &HashSet<ConnectedSocket>) -> io::Result<usize> {
    let connection = Connection::open(NETLINK_SOCK_DIAG)?;
    let (mut closed, mut refused) = (0, None);
    for family in [libc::AF_INET as u8, libc::AF_INET6 as u8] {
        let mut found = Vec::new();
        list(&connection, family, protocol, |socket| {
            let id = socket.id;
            if wanted.contains(&(id.cookie, id.peer(family))) {
                found.push(id);
            }
        })?;
        for id in found {
            let request = Request::new(family, protocol, id);
            let answered = connection.ask(DESTROY, NLM_F_ACK, request.bytes(), |_| {});
            match none_if(&[libc::ENOENT], answered) {
                // None: it was closed meanwhile.
                Ok(done) => closed += usize::from(done.is_some()),
                Err(error) => refused = Some(error),
            }
        }
    }
    refused.map_or(Ok(closed), Err)
}

/// Returns cookie and inode of every TCP and UDP socket in the calling thread's network namespace.
pub fn socket_inodes() -> io::Result<Vec<(u64, u32)>> {
    let connection = Connection::open(NETLINK_SOCK_DIAG)?;
    let mut found = Vec::new();
    for family in [libc::AF_INET as u8, libc::AF_INET6 as u8] {
        for protocol in [Protocol::TCP, Protocol::UDP] {
            list(&connection, family, protocol, |socket| {
                found.push((socket.id.cookie.number(), socket.inode));
            })?;
        }
    }
    Ok(found)
}

/// Visits every socket of a family and protocol.
fn list(
    connection: &Connection,
    family: u8,
    protocol: Protocol,
    mut visit: impl FnMut(Described),
) -> io::Result<()> {
    let any = SocketId {
        ports: [0; 2],
        addresses: [[0; 16]; 2],
        interface: 0,
        cookie: SocketCookie { low: 0, high: 0 },
    };
    let request = Request::new(family, protocol, any);
    connection.ask(DUMP, NLM_F_DUMP, request.bytes(), |answer| {
        if let Some(socket) = Described::from_bytes(answer) {
            visit(socket);
        }
    })
}
