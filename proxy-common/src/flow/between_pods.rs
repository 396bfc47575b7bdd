// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The record of a TCP or UDP conversation between two pods of this node that needs no translation:
//! one 64-bit word for both directions. It says when a packet of each direction last left the
//! node's stack, see [`super::offload`].

use super::offload::{clock, fresh_units};
use crate::{Addr, Port, Protocol, maps::BETWEEN_PODS_SLOTS, select::scramble};

/// One end of a conversation: a pod's address and port.
#[derive(Clone, Copy)]
pub struct End<A> {
    pub address: A,
    pub port: Port,
}

impl<A: Addr> End<A> {
    /// Returns a hash of address and port. With one `key`, two IPv4 ends never have the same hash,
    /// nor do two IPv6 ends whose addresses differ only in the last 64 bits.
    #[inline(always)]
    fn word(&self, key: u64) -> u64 {
        scramble(self.address.scramble((self.port.0 as u64) << 32) ^ key)
    }
}

/// One direction of the packets of a conversation.
#[derive(Clone, Copy)]
pub struct Direction {
    /// The conversation's slot in the map `between_pods`.
    pub slot: u32,
    /// Identifies the conversation in a record: the upper [`NAME_BITS`] bits of a hash.
    name: u64,
    /// Lowest bit of this direction's clock in a record.
    shift: u32,
    /// For how many time units after its own unit a clock stays fresh.
    fresh_units: u32,
}

/// Number of bits that identify the conversation in a record. The others are the bit [`COMPLETE`]
/// and a clock for each direction.
const NAME_BITS: u32 = 31;
const NAME: u64 = !0 << (64 - NAME_BITS);
/// Bit of a record: packets of both directions have left the stack, and then another packet. So
/// netfilter's connection tracking counts the connection as established.
const COMPLETE: u64 = 1 << 32;
/// Size of a direction's clock in a record: 15 bits of time, below the bit [`LEFT`], which says
/// that a packet has left the stack.
const CLOCK_BITS: u32 = 16;
const LEFT: u64 = 1 << 15;
const TIME: u64 = LEFT - 1;

impl Direction {
    /// Returns the direction of packets from one end to the other. `name` does not prove who sent a
    /// packet: callers also check that the source address belongs to the sending pod. `key` is
    /// secret, so that no pod can choose its ports for the name of a conversation that is allowed.
    #[inline(always)]
    pub fn new<A: Addr>(from: &End<A>, to: &End<A>, protocol: Protocol, key: u64) -> Self {
        let (from, to) = (from.word(key), to.word(key));
        let sum = from.wrapping_add(to).wrapping_add(protocol.0 as u64);
        let hash = scramble(sum);
        Self {
            slot: (sum >> 32) as u32 % BETWEEN_PODS_SLOTS,
            name: hash & NAME,
            shift: if from < to { 0 } else { CLOCK_BITS },
            fresh_units: fresh_units(protocol),
        }
    }
}

/// The value of a slot of the map `between_pods`; 0 is no record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub struct Record(pub u64);

impl Record {
    /// Whether the record belongs to the direction's conversation.
    #[inline(always)]
    const fn is_of(self, direction: Direction) -> bool {
        self.0 & NAME == direction.name
    }
    #[inline(always)]
    const fn is_fresh_at(self, shift: u32, units: u32, now: u64) -> bool {
        let noted = self.0 >> shift;
        let age = (clock(now) as u64).wrapping_sub(noted) & TIME;
        noted & LEFT != 0 && age <= units as u64
    }
    /// Whether packets of this direction may leave past the node's stack now.
    #[inline(always)]
    pub const fn allows(self, direction: Direction, now: u64) -> bool {
        self.is_of(direction)
            && self.0 & COMPLETE != 0
            && self.is_fresh_at(0, direction.fresh_units, now)
            && self.is_fresh_at(CLOCK_BITS, direction.fresh_units, now)
    }
    /// Returns the record for a packet that may not leave past the stack: an old clock of its
    /// direction is forgotten, before it comes round and seems fresh.
    #[must_use]
    #[inline(always)]
    pub const fn before_stack(self, direction: Direction, now: u64) -> Self {
        if self.is_of(direction) && !self.is_fresh_at(direction.shift, direction.fresh_units, now) {
            Self(self.0 & !((LEFT | TIME) << direction.shift))
        } else {
            self
        }
    }
    /// Returns the record after a packet of this direction has left the stack. `begins`: the packet
    /// begins a connection, so earlier packets no longer count. `completes`: the packet neither
    /// begins nor accepts a connection, so it may set the bit `COMPLETE`.
    #[must_use]
    #[inline(always)]
    pub const fn after(
        self,
        direction: Direction,
        begins: bool,
        completes: bool,
        now: u64,
    ) -> Self {
        let before = if self.is_of(direction) && !begins {
            self.0
        } else {
            direction.name
        };
        let noted = (LEFT | clock(now) as u64 & TIME) << direction.shift;
        let word = before & !((LEFT | TIME) << direction.shift) | noted;
        let both = LEFT | LEFT << CLOCK_BITS;
        if completes && word & both == both {
            Self(word | COMPLETE)
        } else {
            Self(word)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::V4;

    const UNIT: u64 = 1 << 32;
    const TCP: Protocol = Protocol::TCP;
    const KEY: u64 = 0x0123_4567_89ab_cdef;

    fn end(last: u8, port: u16) -> End<V4> {
        End {
            address: V4 {
                octets: [10, 40, 1, last],
            },
            port: Port::from_host(port),
        }
    }

    fn both(one: End<V4>, other: End<V4>) -> [Direction; 2] {
        [(one, other), (other, one)].map(|(src, dst)| Direction::new(&src, &dst, TCP, KEY))
    }

    #[test]
    fn directions_share_a_name_that_depends_on_address_port_and_protocol() {
        let (client, server) = (end(10, 40_000), end(20, 80));
        let [there, back] = both(client, server);
        assert_eq!((there.slot, there.name), (back.slot, back.name));
        assert_ne!(there.shift, back.shift);
        for other in [end(11, 40_000), end(10, 40_001), end(10, 80)] {
            assert_ne!(there.name, Direction::new(&other, &server, TCP, KEY).name);
        }
        // The ports exchanged: another connection.
        assert_ne!(there.name, both(end(10, 80), end(20, 40_000))[0].name);
        let udp = Direction::new(&client, &server, Protocol::UDP, KEY);
        assert_ne!(there.name, udp.name);
    }

    #[test]
    fn ends_that_differ_in_address_or_port_have_different_words() {
        for shift in [0, 8] {
            let ends = (0..=255).flat_map(|last| (0..=255).map(move |n| end(last, n << shift)));
            let words: HashSet<_> = ends.map(|end| end.word(KEY)).collect();
            assert_eq!(words.len(), 256 * 256);
        }
    }

    #[test]
    fn colliding_conversations_get_different_slots_with_another_key() {
        let slot = |last, port, key| Direction::new(&end(last, port), &end(20, 80), TCP, key).slot;
        let first = slot(10, 0, KEY);
        let mut all = (11..=250).flat_map(|last| (0..2_000).map(move |port| (last, port)));
        let same = all.find(|(last, port)| slot(*last, *port, KEY) == first);
        let (last, port) = same.expect("two conversations with one slot");
        assert_ne!(slot(last, port, KEY + 1), slot(10, 0, KEY + 1));
    }

    #[test]
    fn conversations_are_spread_over_the_slots() {
        let slot = |n: u16| both(end(10, 10_000 + n), end(20, 80))[0].slot;
        let slots: HashSet<_> = (0..10_000).map(slot).collect();
        // Of 65 536 slots, 10 000 random choices take 9 274.
        assert!((9_100..9_450).contains(&slots.len()), "{}", slots.len());
    }

    #[test]
    fn a_record_allows_a_connection_after_three_packets_by_the_stack() {
        let [there, back] = both(end(10, 40_000), end(20, 80));
        let now = 100 * UNIT;
        let mut record = Record::default();
        for (direction, begins, completes) in [
            (there, true, false),
            (back, false, false),
            (there, false, true),
        ] {
            assert!(!record.allows(there, now) && !record.allows(back, now));
            record = record.after(direction, begins, completes, now);
        }
        assert!(record.allows(there, now) && record.allows(back, now));
        let [other, _] = both(end(10, 40_001), end(20, 80));
        assert!(!record.allows(other, now));
        assert!(!record.after(there, true, false, now).allows(there, now));
        // Another conversation in the same slot replaces the record.
        let replaced = record.after(other, false, true, now);
        assert!(!replaced.allows(there, now) && !replaced.allows(other, now));
    }

    /// The record of a connection that began now.
    fn open([there, back]: [Direction; 2], now: u64) -> Record {
        let begun = Record::default().after(there, true, false, now);
        begun.after(back, false, true, now)
    }

    #[test]
    fn a_record_allows_packets_only_while_both_directions_are_fresh() {
        let [there, back] = both(end(10, 40_000), end(20, 80));
        let mut record = open([there, back], 100 * UNIT);
        assert!(record.allows(there, 102 * UNIT));
        assert!(!record.allows(there, 103 * UNIT));
        record = record.after(there, false, true, 103 * UNIT);
        assert!(!record.allows(there, 103 * UNIT), "the other one is old");
        record = record.after(back, false, true, 103 * UNIT);
        assert!(record.allows(there, 103 * UNIT) && record.allows(back, 105 * UNIT));
        assert!(!record.allows(there, 106 * UNIT));
    }

    #[test]
    fn a_direction_that_the_stack_drops_is_never_allowed_again() {
        let [there, back] = both(end(10, 40_000), end(20, 80));
        let mut record = open([there, back], 0);
        assert!(record.allows(there, 0));
        // Its clock comes round after 2^15 units; the other direction goes on.
        for unit in 1..=1 << 15 {
            let now = unit * UNIT;
            assert!(unit <= 2 || !record.allows(there, now), "{unit}");
            record = record.before_stack(there, now);
            record = record.after(back, false, true, now);
        }
    }
}
