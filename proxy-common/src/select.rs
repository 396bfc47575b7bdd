// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Selects one of the slots in a service's block for a new flow. With `selection: random` by a
//! random number; with `selection: maglev` by a hash of the client and the frontend, so that every
//! node selects the same slot ([`flow_number`]); then the block holds a table of [`maglev`]. A
//! backend's share of the slots is its share of the connections ([`weights`]).

#[cfg(any(test, feature = "user"))]
pub mod maglev;
#[cfg(any(test, feature = "user"))]
pub mod weights;

use crate::{Addr, Block, FrontendKey, Port};

/// Returns the slot of the block for a number that is uniform over 32 bits; `None` for an empty
/// block.
#[inline(always)]
pub const fn slot(block: Block, number: u32) -> Option<u32> {
    let count = block.count();
    if count == 0 {
        return None;
    }
    Some(block.first().wrapping_add(number % count))
}

/// Returns the number that selects a slot for a client's flow to a frontend: the same on every
/// node, for every packet of the flow.
///
/// The frontend key of a node port has no address, so nodes agree whichever of their addresses is
/// the destination.
#[inline(always)]
pub fn flow_number<A: Addr>(client: A, client_port: Port, frontend: &FrontendKey<A>) -> u32 {
    const SEED: u64 = 0x243f_6a88_85a3_08d3;
    let ports = (client_port.host() as u64) << 32
        | (frontend.port.host() as u64) << 8
        | frontend.protocol.0 as u64;
    let addresses = frontend.address.scramble(client.scramble(SEED));
    (scramble(addresses ^ ports) >> 32) as u32
}

/// Returns the number that selects a slot for a client of a service with `sessionAffinity:
/// ClientIP`. It is computed from the client's address alone, so that every node selects the same
/// backend.
#[inline(always)]
pub fn client_number<A: Addr>(client: A) -> u32 {
    const SEED: u64 = 0x1319_8a2e_0370_7344;
    (client.scramble(SEED) >> 32) as u32
}

/// Changes a 64-bit word so that each of its bits depends on all of them: two rounds of shift and
/// multiplication.
#[inline(always)]
pub const fn scramble(word: u64) -> u64 {
    let word = (word ^ word >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let word = (word ^ word >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    word ^ word >> 32
}
