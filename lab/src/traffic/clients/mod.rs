// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients in the lab's network namespaces: each call opens one connection and returns its outcome.
//! Called by `flows` and tests.

mod datagrams;
mod tcp;

use std::{
    io::{self, ErrorKind},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use anyhow::{Context, Result};
use nix::sys::socket::{setsockopt, sockopt};
use proxy_common::Protocol;
use socket2::{Domain, SockAddr, Socket, Type};

use super::probe::{Attempt, Outcome};
use crate::node::netns::NetNs;

/// No answer or refusal within this time counts as silence.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// How long to wait for the rest of an answer.
const LONG_PATIENCE: Duration = Duration::from_secs(3);

/// A client at one address of a host.
#[derive(Clone, Copy)]
pub struct Client<'a> {
    pub namespace: &'a NetNs,
    pub address: IpAddr,
    /// The source port; 0 means any.
    pub port: u16,
    /// How long to wait for the first answer.
    pub patience: Duration,
}

impl<'a> Client<'a> {
    pub fn new(namespace: &'a NetNs, address: IpAddr) -> Self {
        Self {
            namespace,
            address,
            port: 0,
            patience: PATIENCE,
        }
    }

    /// Opens one connection and asks for the server's name. Each side sends `length` bytes of data.
    pub fn call(&self, protocol: Protocol, to: SocketAddr, length: usize) -> Result<Attempt> {
        self.namespace
            .enter(|| match protocol {
                Protocol::UDP => self.udp(to, length),
                Protocol::SCTP => self.sctp(to),
                _ => self.tcp(to, length),
            })?
            .with_context(|| {
                let (protocol, own) = (protocol.name(), self.address);
                format!(
                    "call {to} {protocol} from {own} in {}",
                    self.namespace.name()
                )
            })
    }

    /// Makes a socket at the client's address and port. Loopback clients connect without binding
    /// their address (conformance/FORMAT.md).
    fn socket(&self, kind: Type, protocol: Option<i32>) -> io::Result<Socket> {
        let is_loopback = self.address.is_loopback();
        let ip = match self.address {
            IpAddr::V4(_) if is_loopback => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) if is_loopback => Ipv6Addr::UNSPECIFIED.into(),
            ip => ip,
        };
        let at = SocketAddr::new(ip, if kind == Type::RAW { 0 } else { self.port });
        let socket = Socket::new(Domain::for_address(at), kind, protocol.map(Into::into))?;
        if at.port() != 0 {
            socket.set_reuse_address(true)?;
        }
        if !is_loopback || kind == Type::DGRAM {
            socket.bind(&SockAddr::from(at))?;
        }
        Ok(socket)
    }

    fn local_address(&self, socket: &Socket) -> io::Result<SocketAddr> {
        let local = socket.local_addr()?.as_socket();
        let local = local.ok_or_else(|| io::Error::other("a socket without an address"))?;
        let ip = match local.ip().is_unspecified() {
            true => self.address,
            false => local.ip(),
        };
        Ok(SocketAddr::new(ip, local.port()))
    }
}

/// Returns a source port that no earlier datagram has used. A datagram from a used port could
/// belong to an earlier flow, which keeps its endpoint.
fn fresh_port() -> u16 {
    const FIRST: u16 = 33_000;
    const COUNT: u16 = 27_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed) % u32::from(COUNT);
    FIRST + u16::try_from(next).unwrap_or_default()
}

/// Makes the kernel report ICMP errors on a socket that is not connected.
fn report_errors(socket: &Socket, to: SocketAddr) -> io::Result<()> {
    if to.is_ipv4() {
        setsockopt(socket, sockopt::Ipv4RecvErr, &true)?;
    } else {
        setsockopt(socket, sockopt::Ipv6RecvErr, &true)?;
    }
    Ok(())
}

/// Derives the outcome from a socket's error.
fn failure(error: &io::Error) -> Outcome {
    match error.kind() {
        // Only ICMP's port unreachable and TCP's reset become this error.
        ErrorKind::ConnectionRefused => Outcome::Refused,
        ErrorKind::TimedOut | ErrorKind::WouldBlock => Outcome::Silence,
        _ if error.raw_os_error() == Some(libc::EPERM) => Outcome::Denied,
        _ => Outcome::Unreachable(error.to_string()),
    }
}
