// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A flood: packets from random sources, as fast as one processor can send them or at a limited
//! rate.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};

use super::packets::{BATCH, Kind, Raw, forge};
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
    let nobody = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);
    let template = Template::new(kind, forge(kind, nobody, to, 0));
    let mut packets = vec![template.bytes.clone(); BATCH];
    let mut random = Random::new(u64::from(to.port()));
    let mut sent = 0;
    let begin = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        if limit.is_some_and(|limit| sent as f64 > begin.elapsed().as_secs_f64() * f64::from(limit))
        {
            thread::sleep(Duration::from_millis(1));
            continue;
        }
        for packet in &mut packets {
            let number = random.draw();
            let mask = (1 << sources.bits) - 1;
            let address = sources.network.to_bits() | (number as u32 & mask);
            // No client uses port 0.
            let port = ((number >> 32) as u16).max(1);
            template.write(packet, address, port, random.draw() as u32);
        }
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

/// A packet from 0.0.0.0:0, for a SYN with sequence number 0. `checksum_at` is the offset of its
/// transport checksum.
struct Template {
    bytes: Vec<u8>,
    checksum_at: usize,
    is_syn: bool,
}

const SOURCE_AT: usize = 12;
const PORT_AT: usize = 20;
const SEQUENCE_AT: usize = 24;

impl Template {
    fn new(kind: Kind, bytes: Vec<u8>) -> Self {
        let checksum_at = PORT_AT + if kind == Kind::Udp { 6 } else { 16 };
        Self {
            bytes,
            checksum_at,
            is_syn: kind == Kind::Syn,
        }
    }

    /// Writes a source address and port into the packet, and into a SYN a sequence number; corrects
    /// the transport checksum. The kernel fills in the IP header's own checksum.
    fn write(&self, packet: &mut [u8], address: u32, port: u16, sequence: u32) {
        let sequence = if self.is_syn { sequence } else { 0 };
        if self.is_syn {
            packet[SEQUENCE_AT..SEQUENCE_AT + 4].copy_from_slice(&sequence.to_be_bytes());
        }
        packet[SOURCE_AT..SOURCE_AT + 4].copy_from_slice(&address.to_be_bytes());
        packet[PORT_AT..PORT_AT + 2].copy_from_slice(&port.to_be_bytes());
        let at = self.checksum_at;
        let before = !u16::from_be_bytes([self.bytes[at], self.bytes[at + 1]]);
        let halves = |word: u32| (word >> 16) + (word & 0xffff);
        let mut sum = u32::from(before) + halves(address) + halves(sequence) + u32::from(port);
        while sum > 0xffff {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        packet[at..at + 2].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writing_a_source_into_a_packet_template_corrects_its_checksum() {
        let to = SocketAddrV4::new(Ipv4Addr::new(192, 168, 40, 2), 30_080);
        for kind in [Kind::Syn, Kind::Udp] {
            let nobody = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);
            let template = Template::new(kind, forge(kind, nobody, to, 0));
            let mut random = Random::new(7);
            for _ in 0..1_000 {
                let address = Ipv4Addr::from_bits(random.draw() as u32);
                let port = random.draw() as u16;
                let mut packet = template.bytes.clone();
                let sequence = random.draw() as u32;
                template.write(&mut packet, address.to_bits(), port, sequence);
                let whole = forge(kind, SocketAddrV4::new(address, port), to, sequence);
                assert_eq!(packet[SOURCE_AT..], whole[SOURCE_AT..], "{kind:?}");
            }
        }
    }
}
