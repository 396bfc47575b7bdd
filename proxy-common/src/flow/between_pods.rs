// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The record of a connection between two pods of this node that needs no translation: one word
//! computed from both ends, the same for packets of either direction.

use crate::{Addr, Port, maps::BETWEEN_PODS_SLOTS, select::scramble};

/// An end of a connection: a pod's address and its port.
#[derive(Clone, Copy)]
pub struct End<A> {
    pub address: A,
    pub port: Port,
}

impl<A: Addr> End<A> {
    /// No two ends of IPv4 have the same word, nor have two of IPv6 whose addresses differ in the
    /// last 64 bits only.
    #[inline(always)]
    fn word(&self) -> u64 {
        scramble(self.address.scramble((self.port.0 as u64) << 32))
    }
}

/// Returns the slot in the map `between_pods` of the connection between two ends, and the word
/// stored there, which is never 0. The word does not prove who sent a packet: callers also check
/// that the source address belongs to the sending pod.
#[inline(always)]
pub fn place<A: Addr>(one: &End<A>, other: &End<A>) -> (u32, u64) {
    let word = one.word().wrapping_add(other.word());
    ((word >> 32) as u32 % BETWEEN_PODS_SLOTS, word | 1)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::V4;

    fn end(last: u8, port: u16) -> End<V4> {
        End {
            address: V4 {
                octets: [10, 40, 1, last],
            },
            port: Port::from_host(port),
        }
    }

    #[test]
    fn both_directions_have_one_word_and_every_part_of_an_end_changes_it() {
        let (client, server) = (end(10, 40_000), end(20, 80));
        let word = place(&client, &server);
        assert_eq!(word, place(&server, &client));
        assert_ne!(word.1, 0);
        for other in [end(11, 40_000), end(10, 40_001), end(10, 80)] {
            assert_ne!(word.1, place(&other, &server).1);
        }
        // The ports exchanged: another connection.
        assert_ne!(word.1, place(&end(10, 80), &end(20, 40_000)).1);
    }

    #[test]
    fn a_port_makes_up_for_no_change_of_an_address() {
        let ends = (0..=255).flat_map(|last| (0..=255).map(move |port| end(last, port << 8)));
        let words: HashSet<_> = ends.map(|end| end.word()).collect();
        assert_eq!(words.len(), 256 * 256);
        let ends = (0..=255).flat_map(|last| (0..=255).map(move |port| end(last, port)));
        let words: HashSet<_> = ends.map(|end| end.word()).collect();
        assert_eq!(words.len(), 256 * 256);
    }

    #[test]
    fn connections_are_spread_over_the_places() {
        let places: HashSet<_> = (0..10_000)
            .map(|n| place(&end(10, 10_000 + n), &end(20, 80)).0)
            .collect();
        // Of 65 536 slots, 10 000 random choices take 9 274.
        assert!((9_100..9_450).contains(&places.len()), "{}", places.len());
    }
}
