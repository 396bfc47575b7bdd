// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Forges packets with any source address. Only the superuser of a host, or a pod with CAP_NET_RAW,
//! can send them.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    os::fd::AsRawFd,
};

use anyhow::{Context, Result};
use etherparse::PacketBuilder;
use socket2::{Domain, Protocol, Socket, Type};

use crate::node::netns::NetNs;

const HOP_LIMIT: u8 = 64;
const WINDOW: u16 = 64_240;
/// Number of packets in one call of sendmmsg(2).
pub(super) const BATCH: usize = 64;

/// The kind of a forged packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Syn,
    Udp,
}

/// Returns an IPv4 packet with correct checksums. `sequence` is a SYN's sequence number.
pub(super) fn forge(kind: Kind, from: SocketAddrV4, to: SocketAddrV4, sequence: u32) -> Vec<u8> {
    let builder = PacketBuilder::ipv4(from.ip().octets(), to.ip().octets(), HOP_LIMIT);
    let mut bytes = Vec::new();
    let written = match kind {
        Kind::Udp => builder
            .udp(from.port(), to.port())
            .write(&mut bytes, b"forged"),
        Kind::Syn => builder
            .tcp(from.port(), to.port(), sequence, WINDOW)
            .syn()
            .write(&mut bytes, &[]),
    };
    written.expect("a vector takes everything");
    bytes
}

/// A socket that sends packets with their IP headers.
pub(super) struct Raw {
    socket: Socket,
    to: socket2::SockAddr,
}

impl Raw {
    /// Opens a raw socket in a network namespace, for packets to the address `to`.
    pub(super) fn open(namespace: &NetNs, to: Ipv4Addr) -> Result<Self> {
        let kind = Type::RAW;
        let make = || Socket::new(Domain::IPV4, kind, Some(Protocol::from(libc::IPPROTO_RAW)));
        let socket = namespace
            .enter(make)?
            .with_context(|| format!("a raw socket in {}", namespace.name()))?;
        let to = SocketAddr::from((to, 0)).into();
        Ok(Self { socket, to })
    }

    /// Sends up to [`BATCH`] packets; returns how many the kernel has accepted.
    pub(super) fn send(&self, packets: &[Vec<u8>]) -> io::Result<usize> {
        let mut parts = [libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        }; BATCH];
        // SAFETY: a message header of zeros is valid: no address, no buffers, no control data.
        let mut messages: [libc::mmsghdr; BATCH] = unsafe { std::mem::zeroed() };
        let count = packets.len().min(BATCH);
        for ((packet, part), message) in packets.iter().zip(&mut parts).zip(&mut messages) {
            part.iov_base = packet.as_ptr().cast_mut().cast();
            part.iov_len = packet.len();
            message.msg_hdr.msg_name = self.to.as_ptr().cast_mut().cast();
            message.msg_hdr.msg_namelen = self.to.len();
            message.msg_hdr.msg_iov = part;
            message.msg_hdr.msg_iovlen = 1;
        }
        // SAFETY: the first `count` message headers point to a live address and live packets, which
        // the call only reads.
        let sent = unsafe {
            let messages = messages.as_mut_ptr();
            libc::sendmmsg(self.socket.as_raw_fd(), messages, count as u32, 0)
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}
