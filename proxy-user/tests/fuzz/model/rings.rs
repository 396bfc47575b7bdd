// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rings in which flows wait for eviction: half-open connections and UDP flows in the order of
//! their last use, closed flows in the order of their end.

use super::{
    Key, Model,
    wire::{Tuple, UDP},
};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ring {
    HalfOpen,
    Datagrams,
    Closed,
}

/// The position of a name: the ring, and the number of names that were pushed before it.
pub(crate) type Position = (Ring, u64);

impl Ring {
    /// Returns the ring of a flow that can be evicted and is not closed.
    pub(crate) fn of(tuple: &Tuple) -> Self {
        if tuple.protocol == UDP {
            Self::Datagrams
        } else {
            Self::HalfOpen
        }
    }
}

/// The rings of IPv4 and IPv6.
#[derive(Default)]
pub(crate) struct Rings {
    /// The size of each ring; the flow table has eight times as many entries.
    pub(super) size: u64,
    /// The names in each ring: half-open, datagrams, closed for IPv4, then the same for IPv6. They
    /// are the keys of flows, also of flows of datagrams from the node itself.
    named: [Vec<Key>; 6],
    /// How many names were taken out of each ring to make space in the flow table.
    emptied: [u64; 6],
}

/// How many names are taken out of one ring at once to make space.
const ROOM_TRIES: usize = 16;

impl Model {
    /// Puts a name into a ring. In a full ring it overwrites the oldest name; the flow of that name
    /// is removed, unless it cannot be evicted or has a newer name.
    pub(crate) fn push(&mut self, ring: Ring, named: Key) -> Position {
        let v6 = named.tuple.src.is_ipv6();
        let taken = &mut self.rings.named[usize::from(v6) * 3 + ring as usize];
        let n = taken.len() as u64;
        taken.push(named);
        if let Some(oldest) = n.checked_sub(self.rings.size) {
            self.evict(v6, (ring, oldest));
        }
        (ring, n)
    }
    /// Removes the flow named at a position, unless it cannot be evicted or has a newer name.
    fn evict(&mut self, v6: bool, place: Position) {
        let (ring, n) = place;
        let key = self.rings.named[usize::from(v6) * 3 + ring as usize][n as usize];
        let flow = self.flows.get(&key);
        if flow.is_some_and(|flow| flow.place == place && flow.life.gives_way()) {
            self.remove_flow(key);
        }
        let held = self.untouched.get(&key.tuple);
        if held.is_some_and(|held| held.place == place && !held.is_established) {
            self.untouched.remove(&key.tuple);
        }
    }
    /// Returns the number of free entries in the flow table of one address family.
    pub(crate) fn room(&self, v6: bool) -> usize {
        let is_of_family = |tuple: &Tuple| tuple.src.is_ipv6() == v6;
        let flows = self.flows.iter();
        let flows = flows.filter(|(key, _)| is_of_family(&key.tuple));
        let entries = flows.map(|(_, flow)| 2 + usize::from(flow.masquerade.is_some()));
        let untouched = self.untouched.keys().filter(|tuple| is_of_family(tuple));
        (8 * self.rings.size as usize).saturating_sub(entries.sum::<usize>() + untouched.count())
    }
    /// Makes space in a full table: takes the oldest names out of the rings, evicts their flows.
    pub(crate) fn make_room(&mut self, v6: bool) {
        for ring in [Ring::Closed, Ring::HalfOpen, Ring::Datagrams] {
            let index = usize::from(v6) * 3 + ring as usize;
            for _ in 0..ROOM_TRIES {
                let taken = self.rings.named[index].len() as u64;
                let overwritten = taken.saturating_sub(self.rings.size);
                let oldest = self.rings.emptied[index].max(overwritten);
                if oldest >= taken {
                    break;
                }
                self.rings.emptied[index] = oldest + 1;
                self.evict(v6, (ring, oldest));
            }
        }
    }
}
