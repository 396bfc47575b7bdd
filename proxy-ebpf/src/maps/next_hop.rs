// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Next hops that each CPU caches at XDP. Filled and used by `xdp`.

/// What a next hop was looked up for.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Destination<A> {
    pub address: A,
    /// Index of the interface that packets come in by.
    pub interface: u32,
    /// Epoch of routes and neighbours: see [`super::node::route_epoch`].
    pub epoch: u32,
}

/// The next hop to one destination.
#[repr(C)]
pub struct NextHop<A> {
    pub filled: u64,
    pub destination: Destination<A>,
    /// How packets leave: an [`proxy_common::xdp::Exit`].
    pub exit: u32,
    /// Index of the interface that they leave by.
    pub egress: u32,
    /// Receiver's and sender's link-layer addresses, as they lie in a frame.
    pub addresses: [u32; 3],
    /// The address of the interface that packets come in by: four octets, then two.
    pub own_high: u32,
    pub own_low: u16,
    pub mtu: u16,
}
