// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! What a translation writes into a packet. Made by `translate`, written by `rewrite`.

use proxy_common::Port;

/// The new address and port of one end of a packet, and the new port of the packet's other end.
#[derive(Clone, Copy)]
pub struct NatTarget<A> {
    pub address: A,
    pub port: Port,
    pub other_port: Port,
}
