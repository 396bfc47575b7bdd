// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! A frame at XDP, before the kernel has made a packet buffer of it. Handles only packets without
//! options, extension headers or fragments, and reads and writes them in the frame's own memory.
//! Called by `xdp`.

use aya_ebpf::{
    bindings::{xdp_action, xdp_md},
    helpers::generated as helpers,
    programs::XdpContext,
};
use proxy_common::{FlowKey, Protocol, checksum, flow::Signals};

use super::{
    Wire,
    headers::{ETHERNET_LEN, Ports, TCP_CHECKSUM, TcpHeader, UDP_CHECKSUM, UdpHeader},
};

/// The context of a program at XDP: a frame.
#[derive(Clone, Copy)]
pub struct Frame {
    pub(super) raw: *mut xdp_md,
}

/// The values of a plain TCP or UDP packet: one without options, extension headers or fragments.
#[derive(Clone, Copy)]
pub struct Plain<A> {
    pub src: A,
    pub dst: A,
    pub protocol: Protocol,
    /// Time to live, or hop limit.
    pub hops: u8,
    /// IPv4: type of service. IPv6: traffic class and flow label, as on the wire.
    pub class: u32,
    /// Length of the packet from the IP header on.
    pub length: u32,
}

/// The values of a transport header.
#[derive(Clone, Copy)]
pub struct Transport {
    pub ports: Ports,
    pub signals: Signals,
    /// TCP: the acknowledgement number, in host order; else 0.
    pub acknowledged: u32,
}

impl Frame {
    #[inline(always)]
    pub fn new(ctx: &XdpContext) -> Self {
        Self { raw: ctx.ctx }
    }
    /// Returns the index of the interface that the frame has come in by.
    #[inline(always)]
    pub fn interface(self) -> u32 {
        // SAFETY: the context is valid for the program's run.
        unsafe { (*self.raw).ingress_ifindex }
    }

    /// Returns a pointer to a `T` at a constant offset; None unless it lies completely in the
    /// frame.
    #[inline(always)]
    fn at<T>(self, offset: u32) -> Option<*mut T> {
        // SAFETY: as above.
        let (start, end) = unsafe { ((*self.raw).data as usize, (*self.raw).data_end as usize) };
        if start + offset as usize + size_of::<T>() > end {
            return None;
        }
        Some((start + offset as usize) as *mut T)
    }
    /// Reads a `T` at a constant offset; None unless it lies completely in the frame.
    #[inline(always)]
    pub fn read<T: Copy>(self, offset: u32) -> Option<T> {
        // SAFETY: in bounds. Alignment is a formal promise, as in `Skb::peek`.
        self.at::<T>(offset).map(|at| unsafe { *at })
    }
    /// Writes a `T` at a constant offset; None unless it lies completely in the frame.
    #[inline(always)]
    pub fn write<T: Copy>(self, offset: u32, value: T) -> Option<()> {
        // SAFETY: as above; the frame is this program's own.
        self.at::<T>(offset).map(|at| unsafe { *at = value })
    }

    /// Writes both link-layer addresses: the receiver's, then the sender's. None if the frame is
    /// too short.
    // Word by word: a single copy would become a call, which copies byte by byte.
    #[inline(always)]
    pub fn write_addresses(self, addresses: &[u32; 3]) -> Option<()> {
        let [a, b, c] = *addresses;
        let at = self.at::<[u32; 3]>(0)?.cast::<u32>();
        // SAFETY: in bounds, as above.
        unsafe {
            at.write(a);
            at.add(1).write(b);
            at.add(2).write(c);
        }
        Some(())
    }

    #[inline(always)]
    pub fn holds(self, length: u32) -> bool {
        // SAFETY: the context is valid for the program's run.
        let (start, end) = unsafe { ((*self.raw).data as u64, (*self.raw).data_end as u64) };
        end - start >= length as u64
    }

    /// Returns the link-layer address of the frame's receiver: the first four octets, then the last
    /// two. None if the frame is too short.
    #[inline(always)]
    pub fn receiver(self) -> Option<(u32, u16)> {
        Some((self.read(0)?, self.read(4)?))
    }

    /// Reads the transport header of a plain packet of this family; None if it is incomplete.
    #[inline(always)]
    pub fn transport<F: Wire>(self, protocol: Protocol) -> Option<Transport> {
        let l4 = ETHERNET_LEN + F::HEADER_LEN;
        // A TCP header has its ports there, too.
        let udp: UdpHeader = self.read(l4)?;
        let mut transport = Transport {
            ports: udp.ports,
            signals: Signals::NONE,
            acknowledged: 0,
        };
        if protocol == Protocol::TCP {
            let tcp: TcpHeader = self.read(l4)?;
            transport.signals = Signals(tcp.flags);
            transport.acknowledged = u32::from_be(tcp.acknowledgement);
        }
        Some(transport)
    }

    /// Gives a plain packet the ends of `new` and one hop less, and updates its checksums; `old`
    /// are its ports. None, and the packet unchanged, if its headers are incomplete.
    #[inline(always)]
    pub fn rewrite<F: Wire>(
        self,
        packet: &Plain<F::Addr>,
        old: Ports,
        new: &FlowKey<F::Addr>,
    ) -> Option<()> {
        let new_ports = Ports::of(new);
        let l4 = ETHERNET_LEN + F::HEADER_LEN;
        let addresses =
            F::difference(packet.src, new.src) as u64 + F::difference(packet.dst, new.dst) as u64;
        let ports = !old.word() as u64 + new_ports.word() as u64;
        if packet.protocol == Protocol::TCP {
            let at: *mut u16 = self.at(l4 + TCP_CHECKSUM)?;
            // SAFETY: in bounds.
            unsafe { *at = changed(*at, addresses + ports) };
        } else {
            let at: *mut u16 = self.at(l4 + UDP_CHECKSUM)?;
            // SAFETY: in bounds.
            let sum = unsafe { *at };
            // 0: there is no checksum. A checksum of 0 is written as 0xffff.
            if sum != 0 {
                let sum = changed(sum, addresses + ports);
                // SAFETY: in bounds.
                unsafe { *at = if sum == 0 { 0xffff } else { sum } };
            }
        }
        F::store_frame(self, addresses, new)?;
        self.write(l4, new_ports)
    }

    /// Sends the frame back out of the interface that it has come in by, or, without `back`, out of
    /// the interface with this index; returns the action for the kernel.
    #[inline(always)]
    pub fn send(self, interface: u32, back: bool) -> u32 {
        if back {
            xdp_action::XDP_TX
        } else {
            // SAFETY: no pointers.
            unsafe { helpers::bpf_redirect(interface, 0) as u32 }
        }
    }
}

/// Returns a checksum after a change of the bytes that it covers; `sum` is what the change adds.
#[inline(always)]
pub(super) fn changed(checksum: u16, sum: u64) -> u16 {
    !checksum::fold(!checksum as u64 + sum)
}
