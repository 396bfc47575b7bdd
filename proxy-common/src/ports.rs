// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The port filter: which ports anything in the maps may be about, so that all other traffic passes
//! without a single hash lookup.
//!
//! An array of words, eight ports to a word, eight bits to a port. A bit says "maybe": bits are set
//! before what they announce is reachable and cleared only with the whole map, because flows outlive
//! their service; [`STALE`] alone goes when the last socket that it is about has gone. The agent sets them, but
//! for [`REPLY`] and [`MASQUERADE`], which are the programs'.

/// Words in the `ports` array.
pub const WORDS: u32 = 65_536 / PER_WORD;
/// Ports in a word.
pub const PER_WORD: u32 = 8;

/// Some frontend other than a node port has this port.
pub const FRONTEND: u64 = 1;
/// Some node port has this number.
pub const NODE_PORT: u64 = 2;
/// Some flow has led to this port of a backend, so packets from it may be replies.
pub const REPLY: u64 = 4;
/// A UDP backend on this port has gone, and pods' sockets may still be connected to it.
pub const STALE: u64 = 8;
/// Some masqueraded flow has left the node from this port, so packets to it may be replies.
pub const MASQUERADE: u64 = 16;
/// Some backend has this port, so sockets may be connected to it.
pub const BACKEND: u64 = 32;
/// [`STALE`] of every port of a word.
pub const STALE_IN_ANY: u64 = STALE * (u64::MAX / 0xff);

/// Which word tells about a port (host order).
#[inline(always)]
pub const fn word_of(port: u16) -> u32 {
    port as u32 / PER_WORD
}
/// The first port (host order) that a word tells about.
pub const fn first_of(word: u32) -> u16 {
    (word * PER_WORD) as u16
}
/// The bits of a port (host order) in its word.
#[inline(always)]
pub const fn bits(word: u64, port: u16) -> u64 {
    (word >> shift(port)) & 0xff
}
/// `bits` of a port (host order) in place for its word.
#[inline(always)]
pub const fn in_word(bits: u64, port: u16) -> u64 {
    bits << shift(port)
}
#[inline(always)]
const fn shift(port: u16) -> u32 {
    (port as u32 % PER_WORD) * 8
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_port_reads_back_its_own_bits_only(port: u16, other: u16) {
            let word = in_word(FRONTEND | REPLY, port);
            prop_assert!(word_of(port) < WORDS);
            prop_assert_eq!(bits(word, port), FRONTEND | REPLY);
            if other != port && word_of(other) == word_of(port) {
                prop_assert_eq!(bits(word, other), 0);
            }
        }
    }
}
