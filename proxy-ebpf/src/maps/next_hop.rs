// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Next hops that each CPU caches at XDP. Filled in and used by `xdp`.

/// What a next hop was looked up for: a packet's destination, and where and when the packet came
/// in.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Destination<A> {
    pub address: A,
    /// Index of the interface that packets come in by.
    pub interface: u32,
    /// Epoch of routes and neighbours at the look-up: see [`super::node::route_epoch`].
    pub epoch: u32,
}

/// The cached next hop to one destination.
#[repr(C)]
pub struct NextHop<A> {
    pub filled: u64,
    pub destination: Destination<A>,
    /// How packets leave: the number of an [`proxy_common::xdp::Exit`].
    pub exit: u32,
    /// Index of the interface that packets leave by.
    pub egress: u32,
    /// The receiver's, then the sender's link-layer address, as they lie in a frame.
    pub addresses: [u32; 3],
    /// Link-layer address of the interface that packets come in by: four octets, below the other
    /// two.
    pub own_high: u32,
    pub own_low: u16,
    pub mtu: u16,
}
