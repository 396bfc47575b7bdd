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

/// The kind of a forged packet. The field of `Ack` is the acknowledgement number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Syn,
    Ack(u32),
    Rst,
    Udp,
    /// ICMP port unreachable. It contains a TCP packet that the ICMP packet's receiver seems to
    /// have sent.
    Unreachable,
}

/// Returns an IPv4 packet with correct checksums. `sequence` is the TCP sequence number; for
/// [`Kind::Unreachable`], that of the TCP packet inside; UDP has none.
pub(super) fn forge(kind: Kind, from: SocketAddrV4, to: SocketAddrV4, sequence: u32) -> Vec<u8> {
    let addresses =
        |a: Ipv4Addr, b: Ipv4Addr| PacketBuilder::ipv4(a.octets(), b.octets(), HOP_LIMIT);
    let builder = addresses(*from.ip(), *to.ip());
    let mut bytes = Vec::new();
    let written = match kind {
        Kind::Udp => builder
            .udp(from.port(), to.port())
            .write(&mut bytes, b"forged"),
        Kind::Unreachable => {
            let mut quoted = Vec::new();
            addresses(*to.ip(), *from.ip())
                .tcp(to.port(), from.port(), sequence, WINDOW)
                .write(&mut quoted, &[])
                .expect("a vector takes everything");
            let port = etherparse::icmpv4::DestUnreachableHeader::Port;
            builder
                .icmpv4(etherparse::Icmpv4Type::DestinationUnreachable(port))
                .write(&mut bytes, &quoted)
        }
        Kind::Syn | Kind::Ack(_) | Kind::Rst => {
            let tcp = builder.tcp(from.port(), to.port(), sequence, WINDOW);
            let tcp = match kind {
                Kind::Syn => tcp.syn(),
                Kind::Ack(to) => tcp.ack(to),
                _ => tcp.rst(),
            };
            tcp.write(&mut bytes, &[])
        }
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
