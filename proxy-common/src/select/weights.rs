// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Shares slots among weighted backends. Called by the agent, which writes the result as a block.
//!
//! A backend's turns follow each other at equal distances, the shorter the larger its weight. Its
//! first turn comes at once. So every backend with a weight gets a slot if there are enough, and
//! the slots of one backend lie apart.

use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
};

/// The most slots of a list for this many backends. 64 slots for each are enough for shares that
/// differ by less than 2 % of all connections from what the weights say, up to 2000 backends. There
/// is an upper limit, because one change of a weight writes the whole list.
fn most(backends: usize) -> usize {
    backends
        .saturating_mul(64)
        .clamp(1024, 131_072)
        .max(2 * backends)
}

/// Returns the owner of each slot of a list, an index into `weights`. A backend's share of the
/// slots is its share of the weights: exactly if the list is short enough for that, else nearly.
/// Without a common divisor of the weights that makes it shorter, the list is as long as their sum.
/// Backends of weight 0 own no slot, all others own one at least. Equal weights give a list of the
/// backends in their order.
pub fn list(weights: &[u32]) -> Vec<u32> {
    let divisor = weights.iter().fold(0, |a, b| divisor(a, *b));
    if divisor == 0 {
        return Vec::new();
    }
    let exact: u64 = weights.iter().map(|one| u64::from(one / divisor)).sum();
    let backends = weights.iter().filter(|weight| **weight > 0).count();
    let length = exact.min(most(backends) as u64);
    Turns::new(weights).take(length as usize).collect()
}

/// Returns the greatest common divisor; of 0 and a number, the number.
const fn divisor(mut a: u32, mut b: u32) -> u32 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// The order in which backends take slots: endless, or empty if no backend has a weight. Each item
/// is an index into the weights.
pub(super) enum Turns {
    /// All weights are equal: who has a weight, and whose turn is next.
    Equal(Vec<u32>, usize),
    ByWeight(BinaryHeap<Reverse<Turn>>),
}

impl Turns {
    pub(super) fn new(weights: &[u32]) -> Self {
        let with_weight = || (0..).zip(weights).filter(|(_, weight)| **weight > 0);
        let mut some = with_weight().map(|(_, weight)| *weight);
        let first = some.next();
        if some.all(|weight| Some(weight) == first) {
            return Self::Equal(with_weight().map(|(owner, _)| owner).collect(), 0);
        }
        let turn = |(owner, weight): (u32, &u32)| Turn {
            time: 0,
            weight: u64::from(*weight),
            owner,
        };
        Self::ByWeight(with_weight().map(turn).map(Reverse).collect())
    }
}

impl Iterator for Turns {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        match self {
            Self::Equal(owners, next) => {
                let owner = *owners.get(*next)?;
                *next = (*next + 1) % owners.len();
                Some(owner)
            }
            Self::ByWeight(heap) => {
                let mut first = heap.peek_mut()?;
                let Reverse(turn) = &mut *first;
                let owner = turn.owner;
                turn.pass();
                Some(owner)
            }
        }
    }
}

/// A backend's next turn. It comes at the time `time / weight`.
#[derive(PartialEq, Eq)]
pub(super) struct Turn {
    time: u64,
    weight: u64,
    owner: u32,
}

impl Turn {
    /// Goes on to the backend's next turn: after 0, these are 3/2, 5/2, 7/2 and so on, divided by
    /// the weight. So the number of turns until a time is that time's product with the weight,
    /// rounded.
    fn pass(&mut self) {
        self.time = if self.time == 0 { 3 } else { self.time + 2 };
    }
}

impl Ord for Turn {
    fn cmp(&self, other: &Self) -> Ordering {
        let (own, others) = (self.time * other.weight, other.time * self.weight);
        own.cmp(&others).then(self.owner.cmp(&other.owner))
    }
}

impl PartialOrd for Turn {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests;
