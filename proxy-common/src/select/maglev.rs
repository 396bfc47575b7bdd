// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of a service with `selection: maglev`, as Google's load balancer Maglev makes it (NSDI
//! 2016): it is made from a list of backends and has an owner for each slot. Called by the agent,
//! which writes the table as a block.
//!
//! Each backend has its own order of all slots, from its address and port alone. In turn, each
//! backend takes the first free slot of its order. So every node makes the same table from the same
//! backends, the shares differ by one slot at most, and most slots keep their owner when a backend
//! is added or removed. With weights, backends have turns as often as their weights say.

use super::{scramble, weights::Turns};
use crate::{Addr, Port};

/// Table sizes: a maximum number of backends, and the number of slots of a table for that many. The
/// numbers of slots are prime, because every step through the slots then meets every slot.
///
/// The more slots for each backend, the fewer of them change their owner needlessly when a backend
/// is added or removed: with 256 and more about one in a hundred. A table of another size moves
/// nearly all clients, so there are few sizes. There is no larger size than the last, because one
/// change of a service with many backends would write too much.
const SIZES: [(usize, usize); 9] = [
    (0, 0),
    (4, 1031),
    (8, 2053),
    (16, 4099),
    (32, 8209),
    (64, 16_411),
    (128, 32_771),
    (256, 65_537),
    (usize::MAX, 131_101),
];

/// Returns the number of slots of a table for this many backends; 0 without backends.
fn size(backends: usize) -> usize {
    let mut sizes = SIZES.iter();
    let found = sizes.find(|(most, _)| backends <= *most);
    found.map_or(0, |(_, size)| *size)
}

/// Returns the owner of each slot: an index into `backends`, whose order does not matter. A backend
/// that is listed several times has as many shares. If there are more backends than slots, the last
/// backends by address own no slot. The weights stand in the order of the backends. Backends of
/// weight 0 own no slot, but count for the size of the table, so that no change of a weight changes
/// that. The table is empty if all weights are 0.
pub fn weighted<A: Addr>(backends: &[(A, Port)], weights: &[u32]) -> Vec<u32> {
    if weights.iter().all(|weight| *weight == 0) {
        return Vec::new();
    }
    let size = size(backends.len());
    let mut walks: Vec<_> = (0..)
        .zip(backends)
        .map(|(owner, backend)| (*backend, owner, Walk::of(*backend, size)))
        .collect();
    walks.sort_unstable_by_key(|((address, port), owner, _)| (*address, port.host(), *owner));
    let in_order = |(_, owner, _): &(_, u32, _)| weights.get(*owner as usize).copied();
    let in_order: Vec<_> = walks.iter().filter_map(in_order).collect();
    let mut owners = vec![0; size];
    let mut taken = vec![0_u64; size.div_ceil(64)];
    for turn in Turns::new(&in_order).take(size) {
        let (_, owner, walk) = &mut walks[turn as usize];
        owners[walk.take_next(&mut taken, size)] = *owner;
    }
    owners
}

/// A backend's order of all slots, and the current position in it.
struct Walk {
    next: usize,
    step: usize,
}

impl Walk {
    fn of<A: Addr>((address, port): (A, Port), size: usize) -> Self {
        const SEED: u64 = 0xa409_3822_299f_31d0;
        let word = scramble(address.scramble(SEED) ^ u64::from(port.host()));
        let (high, low) = (word >> 32, word & 0xffff_ffff);
        Self {
            next: (high % size as u64) as usize,
            step: (low % (size as u64 - 1)) as usize + 1,
        }
    }
    /// Takes the first free slot of this order from the current position on, and marks it in
    /// `taken`. There must be a free slot.
    fn take_next(&mut self, taken: &mut [u64], size: usize) -> usize {
        loop {
            let slot = self.next;
            self.next += self.step;
            if self.next >= size {
                self.next -= size;
            }
            let (word, bit) = (&mut taken[slot / 64], 1 << (slot % 64));
            if *word & bit == 0 {
                *word |= bit;
                return slot;
            }
        }
    }
}

#[cfg(test)]
mod tests;
