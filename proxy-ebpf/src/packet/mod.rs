// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Packets: their bytes are read into values, and values are written back. A packet is parsed once,
//! and no pointer is kept. Only this module touches a packet's bytes, and it uses no maps.

pub mod access;
pub mod fib;
pub mod frame;
pub mod headers;
mod ipv4;
mod ipv6;
pub mod outer;
pub mod parse;
mod parsed;
pub mod quote;
mod rewrite;
pub mod wire;

pub use access::Skb;
pub use frame::{Frame, Plain, Transport};
pub use ipv4::Ipv4;
pub use ipv6::Ipv6;
pub use parsed::{Network, Packet, Shape};
pub use rewrite::NatTarget;
pub use wire::{Ip, Wire};
