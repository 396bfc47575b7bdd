// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Packets as values: parsed once, no pointer kept. Everything that touches a packet's bytes is here.

pub mod access;
pub mod headers;
pub mod icmp;
pub mod parse;

pub use access::Skb;
pub use parse::{Packet, Shape};
