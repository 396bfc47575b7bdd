// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sends frames in large numbers, by the kernel's test runs of XDP programs with live frames. Also
//! the bare XDP programs that generate, return and count such frames. Used by benchmarks.

mod programs;

use std::{
    net::Ipv4Addr,
    os::fd::{AsFd, OwnedFd},
    time::Instant,
};

use anyhow::{Result, bail};
use etherparse::{IpHeaders, IpNumber, Ipv4Header, PacketBuilder};

use crate::{
    bpf::{Element, load_xdp, run_live},
    node::netns::NetNs,
};

pub use programs::{far_end, looking_mirror, mirror, sink};

/// The most flows of a [`Generator`].
pub const MOST_FLOWS: u32 = 65_536;
/// The first two bytes of all clients' addresses: 198.18.
const CLIENTS: u16 = 0xc612;
/// Mask for the upper four bits of a flow's number, which are in the third byte of the source
/// address. The IP identification compensates for them, so that the IP header's checksum stays
/// correct.
const UPPER: i32 = 15;

/// Returns a frame with a UDP datagram of flow 0, as short as possible, without a UDP checksum. For
/// a [`Generator`], whose flows come from `198.18.N.1`. `macs`: source, destination.
pub fn datagram(macs: [[u8; 6]; 2], to: Ipv4Addr, port: u16) -> Vec<u8> {
    const CHECKSUM: usize = 40;
    let payload = [0; 18];
    let length = (8 + payload.len()) as u16;
    let (from, from_port) = client(0);
    let mut header = Ipv4Header::new(length, 64, IpNumber::UDP, from.octets(), to.octets())
        .expect("shorter than the longest packet");
    header.identification = (UPPER as u16) << 8;
    let [source, destination] = macs;
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(source, destination)
        .ip(IpHeaders::Ipv4(header, Default::default()))
        .udp(from_port, port)
        .write(&mut frame, &payload)
        .expect("a vector takes every byte");
    frame[CHECKSUM..CHECKSUM + 2].fill(0);
    frame
}

/// Returns the source address and port of a flow of a [`Generator`]; `flow` is its number.
pub fn client(flow: u32) -> (Ipv4Addr, u16) {
    let [first, second] = CLIENTS.to_be_bytes();
    let address = Ipv4Addr::new(first, second, (flow >> 12) as u8, 1);
    (address, 1024 + (flow & 4095) as u16)
}

/// Sends frames of many flows out of an interface.
pub struct Generator {
    program: OwnedFd,
    frame: Vec<u8>,
    /// The number of the next frame, the number of flows minus 1, the interface's index.
    state: Element<[u32; 3]>,
}

impl Generator {
    /// Makes a generator. Its frames equal `frame`, made by [`datagram`], except for the source.
    pub fn new(frame: Vec<u8>) -> Result<Self> {
        let state = Element::new()?;
        let program = load_xdp(&programs::generator(state.map(), &frame))?;
        Ok(Self {
            program,
            frame,
            state,
        })
    }

    /// Prepares the next frames: `flows` is their number of flows, a power of two, `interface` the
    /// index of the interface that they leave by.
    pub fn aim(&self, flows: u32, interface: u32) -> Result<()> {
        self.state.write([0, flows - 1, interface])
    }

    /// Sends `frames` frames from the namespace of the interface. Returns how many of them arrived,
    /// as `count` reports it, and the seconds that it took.
    pub fn send(
        &self,
        from: &NetNs,
        frames: u32,
        count: impl Fn() -> Result<u64>,
    ) -> Result<(u64, f64)> {
        let before = count()?;
        let start = Instant::now();
        from.enter(|| run_live(self.program.as_fd(), &self.frame, frames))??;
        let took = start.elapsed().as_secs_f64();
        Ok((count()? - before, took))
    }

    /// Like `send`, but sends `first` other frames before, and repeats both until nine of ten
    /// frames arrive: if other programs use the processor, a device's queue overflows now and then.
    pub fn send_most(
        &self,
        from: &NetNs,
        [first, frames]: [u32; 2],
        count: impl Fn() -> Result<u64>,
    ) -> Result<(u64, f64)> {
        const TRIES: u32 = 5;
        for _ in 0..TRIES {
            if first > 0 {
                self.send(from, first, &count)?;
            }
            let (came, took) = self.send(from, frames, &count)?;
            if came > u64::from(frames) * 9 / 10 {
                return Ok((came, took));
            }
        }
        bail!("in {TRIES} tries more than a tenth of {frames} frames was lost")
    }
}
