// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A flood: packets from random sources, as fast as one processor can send them or at a limited
//! rate. Only the superuser of a host, or a pod with CAP_NET_RAW, can send them.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    os::fd::AsRawFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};
use etherparse::PacketBuilder;
use socket2::{Domain, Protocol, Socket, Type};

use crate::{load::cpu::pin, node::netns::NetNs, random::Random};

/// The forged sources of a flood. In each address the lowest `bits` bits are random and the rest is
/// `network`'s; the port is random too.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sources {
    pub(super) network: Ipv4Addr,
    pub(super) bits: u32,
}

/// Sources for a flood from outside: 11.0.0.0/8, which no host here has.
pub(super) const ANYONE: Sources = Sources {
    network: Ipv4Addr::new(11, 0, 0, 0),
    bits: 24,
};
/// Sources for a flood from a pod: its neighbours' addresses, so that reverse path filters accept
/// them. No host has these addresses.
pub(super) const NEIGHBOURS: Sources = Sources {
    network: Ipv4Addr::new(10, 40, 1, 128),
    bits: 6,
};

/// A running flood; dropping this ends the flood.
pub(super) struct Flood {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Sent>>>,
}

/// What a flood has sent.
#[derive(Clone, Copy, Default, Debug)]
pub struct Sent {
    pub packets: u64,
    pub per_second: f64,
}

impl Flood {
    /// Starts a flood of packets to `to`. `limit` is the most packets a second; None means no
    /// limit.
    pub(super) fn start(
        namespace: &NetNs,
        kind: Kind,
        sources: Sources,
        to: SocketAddrV4,
        limit: Option<u32>,
    ) -> Result<Self> {
        let raw = Raw::open(namespace, *to.ip())?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || send(&raw, kind, sources, to, limit, &stopped));
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }

    pub(super) fn stop(mut self) -> Result<Sent> {
        self.end()
    }

    fn end(&mut self) -> Result<Sent> {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        ended
            .context("it has ended")?
            .map_err(|_| anyhow!("the flood broke down"))?
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        if self.thread.is_some()
            && let Err(error) = self.end()
        {
            eprintln!("the flood: {error:#}");
        }
    }
}

fn send(
    raw: &Raw,
    kind: Kind,
    sources: Sources,
    to: SocketAddrV4,
    limit: Option<u32>,
    stop: &AtomicBool,
) -> Result<Sent> {
    pin()?;
    let mut random = Random::new(u64::from(to.port()));
    let mut sent = 0;
    let begin = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        if limit.is_some_and(|limit| sent as f64 > begin.elapsed().as_secs_f64() * f64::from(limit))
        {
            thread::sleep(Duration::from_millis(1));
            continue;
        }
        let mut packet = |_| {
            let number = random.draw();
            let mask = (1 << sources.bits) - 1;
            let address = sources.network.to_bits() | (number as u32 & mask);
            // No client uses port 0.
            let port = ((number >> 32) as u16).max(1);
            let from = SocketAddrV4::new(address.into(), port);
            forge(kind, from, to, random.draw() as u32)
        };
        let packets: Vec<_> = (0..BATCH).map(&mut packet).collect();
        match raw.send(&packets) {
            Ok(count) => sent += count as u64,
            // Queues on the path are full. The next packets may fit.
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => thread::yield_now(),
            Err(error) => return Err(error).context("send the flood"),
        }
    }
    Ok(Sent {
        packets: sent,
        per_second: sent as f64 / begin.elapsed().max(Duration::from_millis(1)).as_secs_f64(),
    })
}

const HOP_LIMIT: u8 = 64;
const WINDOW: u16 = 64_240;
/// Number of packets in one call of sendmmsg(2).
const BATCH: usize = 64;

/// The kind of a forged packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Syn,
    Udp,
}

/// Returns an IPv4 packet with correct checksums. `sequence` is a SYN's sequence number.
fn forge(kind: Kind, from: SocketAddrV4, to: SocketAddrV4, sequence: u32) -> Vec<u8> {
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
struct Raw {
    socket: Socket,
    to: socket2::SockAddr,
}

impl Raw {
    /// Opens a raw socket in a network namespace, for packets to the address `to`.
    fn open(namespace: &NetNs, to: Ipv4Addr) -> Result<Self> {
        let kind = Type::RAW;
        let make = || Socket::new(Domain::IPV4, kind, Some(Protocol::from(libc::IPPROTO_RAW)));
        let socket = namespace
            .enter(make)?
            .with_context(|| format!("a raw socket in {}", namespace.name()))?;
        let to = SocketAddr::from((to, 0)).into();
        Ok(Self { socket, to })
    }

    /// Sends up to [`BATCH`] packets; returns how many the kernel has accepted.
    fn send(&self, packets: &[Vec<u8>]) -> io::Result<usize> {
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
