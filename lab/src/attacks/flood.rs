// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A flood: SYNs from random sources, as fast as one processor can send them. Only the superuser of
//! a host, or a pod with CAP_NET_RAW, can send them.

use std::{
    io::IoSlice,
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::AsRawFd,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use anyhow::{Context, Result, anyhow};
use etherparse::PacketBuilder;
use nix::{
    errno::Errno,
    sys::socket::{MsgFlags, MultiHeaders, SockaddrIn, sendmmsg},
};
use socket2::{Domain, Protocol, Socket, Type};

use crate::{load::cpu::pin, node::netns::NetNs, random::Random};

/// The forged sources of a flood. In each address the lowest `bits` bits are random and the rest is
/// `network`'s; the port is random too.
#[derive(Clone, Copy)]
pub(super) struct Sources {
    network: Ipv4Addr,
    bits: u32,
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

/// The packets of a flood to `to`.
pub(super) struct Flood<'a> {
    pub(super) attacker: &'a NetNs,
    pub(super) sources: Sources,
    pub(super) to: SocketAddrV4,
}

const HOP_LIMIT: u8 = 64;
const WINDOW: u16 = 64_240;
/// Number of packets in one call of sendmmsg(2).
const BATCH: usize = 64;

impl Flood<'_> {
    /// Sends the flood while `work` is done. Returns the packets' number, and what `work` returns.
    pub(super) fn during<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<(u64, T)> {
        let name = self.attacker.name();
        let raw = Some(Protocol::from(libc::IPPROTO_RAW));
        let open = || Socket::new(Domain::IPV4, Type::RAW, raw);
        let socket = self.attacker.enter(open)?;
        let socket = socket.with_context(|| format!("a raw socket in {name}"))?;
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let sender = scope.spawn(|| self.send(&socket, &stop));
            let done = work();
            stop.store(true, Ordering::Relaxed);
            let sent = sender.join().map_err(|_| anyhow!("the flood broke down"))?;
            Ok((sent?, done?))
        })
    }

    fn send(&self, socket: &Socket, stop: &AtomicBool) -> Result<u64> {
        pin()?;
        let mut random = Random::new(u64::from(self.to.port()));
        let mut headers = MultiHeaders::preallocate(BATCH, None);
        let to = [Some(SockaddrIn::from(SocketAddrV4::new(*self.to.ip(), 0))); BATCH];
        let mut sent = 0;
        while !stop.load(Ordering::Relaxed) {
            let packets: Vec<_> = (0..BATCH).map(|_| self.forge(&mut random)).collect();
            let slices = packets.iter().map(|packet| [IoSlice::new(packet)]);
            let slices: Vec<_> = slices.collect();
            let flags = MsgFlags::empty();
            match sendmmsg(socket.as_raw_fd(), &mut headers, &slices, to, [], flags) {
                Ok(results) => sent += results.count() as u64,
                // Queues on the path are full. The next packets may fit.
                Err(Errno::ENOBUFS) => thread::yield_now(),
                Err(error) => return Err(error).context("send the flood"),
            }
        }
        Ok(sent)
    }

    /// Returns an IPv4 packet with correct checksums.
    fn forge(&self, random: &mut Random) -> Vec<u8> {
        let (number, sequence) = (random.draw(), random.draw() as u32);
        let mask = (1 << self.sources.bits) - 1;
        let from = Ipv4Addr::from_bits(self.sources.network.to_bits() | (number as u32 & mask));
        // No client uses port 0.
        let ports = (((number >> 32) as u16).max(1), self.to.port());
        let builder = PacketBuilder::ipv4(from.octets(), self.to.ip().octets(), HOP_LIMIT);
        let builder = builder.tcp(ports.0, ports.1, sequence, WINDOW).syn();
        let mut bytes = Vec::new();
        let written = builder.write(&mut bytes, &[]);
        written.expect("a vector takes everything");
        bytes
    }
}
