// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The `ports` map, which the filter reads: for each port, bits that say whether the other maps may
//! have an entry for it. All other traffic passes without a hash look-up.
//!
//! An array of words, eight ports to a word, eight bits to a port. A bit says "maybe". It is set
//! before the entry that it announces can be found, and cleared only with the whole map, because
//! flows outlive their service. The programs set [`REPLY`], [`MASQUERADE`] and [`DIRECT`], the
//! agent all others.

/// Number of words in the array `ports`.
pub const WORDS: u32 = 65_536 / PER_WORD;
/// Number of ports in a word.
pub const PER_WORD: u32 = 8;

/// A frontend other than a node port has this port.
pub const FRONTEND: u64 = 1;
/// A node port has this number.
pub const NODE_PORT: u64 = 2;
/// A flow has led to this port of a backend, so packets from it may be replies.
pub const REPLY: u64 = 4;
/// A masqueraded flow has left the node from this port, so packets to it may be replies.
pub const MASQUERADE: u64 = 16;
/// A backend has this port, so sockets may be connected to it.
pub const BACKEND: u64 = 32;
/// A direct connection (not through a service) to this port of a backend leaves with another source
/// port than its client's.
pub const DIRECT: u64 = 64;

/// Returns the index of the word that has this port's bits (port in host order).
#[inline(always)]
pub const fn word_of(port: u16) -> u32 {
    port as u32 / PER_WORD
}
/// Returns the bits of a port (host order); `word` is its word.
#[inline(always)]
pub const fn bits(word: u64, port: u16) -> u64 {
    (word >> shift(port)) & 0xff
}
/// Returns a port's (host order) `bits`, shifted to their position in its word.
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
        fn a_ports_bits_are_read_back_for_this_port_only(port: u16, other: u16) {
            let word = in_word(FRONTEND | REPLY, port);
            prop_assert!(word_of(port) < WORDS);
            prop_assert_eq!(bits(word, port), FRONTEND | REPLY);
            if other != port && word_of(other) == word_of(port) {
                prop_assert_eq!(bits(word, other), 0);
            }
        }
    }
}
