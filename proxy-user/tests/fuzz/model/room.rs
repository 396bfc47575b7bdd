// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Room in the flow tables. Only those of the node with small tables are ever full, and these have
//! two sets: every entry may be anywhere. So the model need not know where entries are.

use super::{
    Flow, Key, Model,
    wire::{Tuple, UDP},
};

impl Model {
    /// Returns the number of free entries in the flow table of one address family.
    pub(crate) fn room(&self, v6: bool) -> usize {
        let is_of_family = |tuple: &Tuple| tuple.src.is_ipv6() == v6;
        let flows = self.flows.iter();
        let flows = flows.filter(|(key, _)| is_of_family(&key.tuple));
        let entries = flows.map(|(_, flow)| entries_of(flow));
        let untouched = self.untouched.keys().filter(|tuple| is_of_family(tuple));
        self.capacity
            .saturating_sub(entries.sum::<usize>() + untouched.count())
    }
    /// Makes room for another entry of this tuple's family and protocol than the `taken` ones that
    /// are being made: in a full table, the flow goes that gives way and has been silent for
    /// longest, but closed ones go first, and for a connection half-open ones before datagrams. Of
    /// several that were last used in the same second, the one goes that the programs have evicted.
    /// Returns false if none gives way.
    pub(crate) fn make_room(&mut self, tuple: &Tuple, taken: usize) -> bool {
        let v6 = tuple.src.is_ipv6();
        if self.room(v6) > taken {
            return true;
        }
        let rank = |protocol: u8, is_closed: bool| match (is_closed, protocol == UDP) {
            (true, _) => 0,
            (false, true) if tuple.protocol != UDP => 2,
            (false, _) => 1,
        };
        let flows = self.flows.iter();
        let flows = flows.filter(|(_, flow)| flow.life.gives_way());
        let flows = flows.map(|(key, flow)| {
            let rank = rank(key.tuple.protocol, flow.life.is_closed());
            (*key, (rank, flow.last_seen))
        });
        let untouched = self.untouched.iter();
        let untouched = untouched.filter(|(_, held)| !held.is_established);
        let untouched = untouched.map(|(tuple, held)| {
            let (tuple, interface) = (*tuple, 0);
            let rank = rank(tuple.protocol, false);
            (Key { tuple, interface }, (rank, held.last_seen))
        });
        let all = flows.chain(untouched);
        let of_family = all.filter(|(key, _)| key.tuple.src.is_ipv6() == v6);
        let entries = |key: &Key| self.flows.get(key).map_or(1, entries_of);
        // If several have gone, the first had too few entries to make the room alone.
        let oldest =
            of_family.min_by_key(|(key, seen)| (*seen, !self.evicted.contains(key), entries(key)));
        let Some((key, _)) = oldest else {
            return false;
        };
        self.untouched.remove(&key.tuple);
        self.remove_flow(key);
        true
    }
}

/// Returns how many entries a flow has.
fn entries_of(flow: &Flow) -> usize {
    2 + usize::from(flow.masquerade.is_some())
}
