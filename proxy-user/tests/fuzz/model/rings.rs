// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The two rings: half-open flows in the order of their beginning, closed ones in that of their end.

use super::{Key, Model, wire::Tuple};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ring {
    HalfOpen,
    Closed,
}

/// What a place in a ring names: a flow, or an untouched one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Named {
    Flow(Key),
    Untouched(Tuple),
}

/// A place in a ring.
pub(crate) type Place = (Ring, u64);

/// Both rings of both families.
pub(crate) struct Rings {
    size: u64,
    /// IPv4's, then IPv6's, each half-open and closed.
    named: [Vec<Named>; 4],
}

impl Rings {
    pub(crate) fn new(size: u64) -> Self {
        Self {
            size,
            named: Default::default(),
        }
    }
}

impl Model {
    /// Puts a name into a ring. The flow of the name that it overwrites goes if it gives way and has not been named since.
    pub(crate) fn push(&mut self, ring: Ring, named: Named) -> Place {
        let v6 = match named {
            Named::Flow(key) => key.tuple.src.is_ipv6(),
            Named::Untouched(tuple) => tuple.src.is_ipv6(),
        };
        let taken = &mut self.rings.named[usize::from(v6) * 2 + ring as usize];
        let n = taken.len() as u64;
        taken.push(named);
        if n < self.rings.size {
            return (ring, n);
        }
        let place = (ring, n - self.rings.size);
        match taken[place.1 as usize] {
            Named::Flow(key) => {
                let flow = self.flows.get(&key);
                if flow.is_some_and(|flow| flow.place == place && flow.life.gives_way()) {
                    self.remove_flow(key);
                }
            }
            Named::Untouched(tuple) => {
                let held = self.untouched.get(&tuple);
                if held.is_some_and(|held| held.place == place && !held.is_established) {
                    self.untouched.remove(&tuple);
                }
            }
        }
        (ring, n)
    }
}
