// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is remembered of a connection between two pods of this node that needs no translation: one word of both of its ends, the
//! same for packets of either direction.

use crate::{Addr, Port, maps::BETWEEN_PODS_SLOTS};

/// An end of a connection: a pod's address, its port, and the index of the host's end of the pod's link. With the index, packets with
/// another pod's address are of another connection.
#[derive(Clone, Copy)]
pub struct End<A> {
    pub address: A,
    pub port: Port,
    pub interface: u32,
}

impl<A: Addr> End<A> {
    #[inline(always)]
    fn word(&self) -> u64 {
        let rest = (self.interface as u64) << 16 | self.port.0 as u64;
        self.address.scramble(rest)
    }
}

/// The place in the map `between_pods` of the connection between two ends, and the word that it has there. 64 bits: that another
/// connection has the same is out of anyone's reach, since its own pod's address and interface are part of it.
#[inline(always)]
pub fn place<A: Addr>(one: &End<A>, other: &End<A>) -> (u32, u64) {
    let word = one.word().wrapping_add(other.word());
    ((word >> 32) as u32 % BETWEEN_PODS_SLOTS, word | 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::V4;

    fn end(last: u8, port: u16, interface: u32) -> End<V4> {
        End {
            address: V4 {
                octets: [10, 40, 1, last],
            },
            port: Port::from_host(port),
            interface,
        }
    }

    #[test]
    fn both_directions_have_one_word_and_every_part_of_an_end_changes_it() {
        let (client, server) = (end(10, 40_000, 7), end(20, 80, 9));
        let word = place(&client, &server);
        assert_eq!(word, place(&server, &client));
        assert_ne!(word.1, 0);
        for other in [
            end(11, 40_000, 7),
            end(10, 40_001, 7),
            end(10, 40_000, 8),
            end(10, 80, 7),
        ] {
            assert_ne!(word.1, place(&other, &server).1);
        }
        // The ports exchanged: another connection.
        assert_ne!(word.1, place(&end(10, 80, 7), &end(20, 40_000, 9)).1);
    }

    #[test]
    fn connections_are_spread_over_the_places() {
        let places: std::collections::HashSet<_> = (0..10_000)
            .map(|n| place(&end(10, 10_000 + n, 7), &end(20, 80, 9)).0)
            .collect();
        // Of 65 536 places, 10 000 choices at random take 9 274.
        assert!((9_100..9_450).contains(&places.len()), "{}", places.len());
    }
}
