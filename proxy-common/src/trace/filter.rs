// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which events are wanted: a few terms, and clauses over their truth. The same function in the kernel and on the host.

use core::ptr;

use super::{Event, Tuple};
use crate::{Addr, V6};

/// Terms that a filter has at most.
pub const TERMS: usize = 16;
/// Clauses that a filter has at most.
pub const CLAUSES: usize = 32;

/// One property of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Term {
    /// One of the constants of this type.
    pub kind: u32,
    /// [`Term::SRC`], [`Term::DST`] or both.
    pub sides: u32,
    /// A port range in the host's order; or a protocol, family, hook bits, interface, process, or service port, in `low`.
    pub low: u32,
    pub high: u32,
    /// For [`Term::NET`].
    pub address: V6,
    pub mask: V6,
}

impl Term {
    pub const SRC: u32 = 1;
    pub const DST: u32 = 2;

    /// An address of a side is in the range.
    pub const NET: u32 = 0;
    /// A port of a side is in the range.
    pub const PORT: u32 = 1;
    pub const PROTOCOL: u32 = 2;
    pub const FAMILY: u32 = 3;
    /// The hook's bit is set in `low`.
    pub const HOOK: u32 = 4;
    pub const INTERFACE: u32 = 5;
    pub const PROCESS: u32 = 6;
    /// The service port with this id.
    pub const SERVICE: u32 = 7;
    /// The outcome's bit is set in `high`, `low`.
    pub const OUTCOME: u32 = 8;

    pub const NONE: Self = Self {
        kind: Self::HOOK,
        sides: 0,
        low: 0,
        high: 0,
        address: V6 { octets: [0; 16] },
        mask: V6 { octets: [0; 16] },
    };

    /// Whether an event has the property, by its ends before or after.
    #[inline(always)]
    fn holds(&self, event: &Event, tuple: &Tuple) -> bool {
        let (src, dst) = (self.sides & Self::SRC != 0, self.sides & Self::DST != 0);
        match self.kind {
            Self::NET => {
                let inside = |address: V6| address.masked(self.mask) == self.address;
                tuple.family != 0 && (src && inside(tuple.src) || dst && inside(tuple.dst))
            }
            Self::PORT => {
                let inside = |port: u16| (self.low..=self.high).contains(&(port as u32));
                src && inside(tuple.src_port.host()) || dst && inside(tuple.dst_port.host())
            }
            Self::PROTOCOL => tuple.family != 0 && tuple.protocol.0 as u32 == self.low,
            Self::FAMILY => tuple.family as u32 == self.low,
            Self::HOOK => self.low >> (event.hook & 31) & 1 != 0,
            Self::INTERFACE => event.interface == self.low,
            Self::PROCESS => event.process == self.low,
            Self::SERVICE => event.service == self.low,
            _ => is_in(self.outcomes(), event),
        }
    }
    #[inline(always)]
    const fn outcomes(&self) -> u64 {
        (self.high as u64) << 32 | self.low as u64
    }
}

/// Whether a mask of outcomes has an event's.
#[inline(always)]
fn is_in(outcomes: u64, event: &Event) -> bool {
    outcomes >> (event.outcome & 63) & 1 != 0
}

/// Terms that must hold and terms that must not, as bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Clause {
    pub mask: u32,
    /// The terms of the mask that must hold.
    pub value: u32,
}

/// A filter: an event is wanted if one of its clauses holds, by the ends before or by those after.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Filter {
    pub terms: [Term; TERMS],
    pub clauses: [Clause; CLAUSES],
    pub term_count: u32,
    pub clause_count: u32,
    /// Outcomes that are wanted at all, as bits: asked first, because most packets are of no service.
    pub outcomes: u64,
}

impl Filter {
    /// Wants every event with these outcomes.
    pub const fn all(outcomes: u64) -> Self {
        Self {
            terms: [Term::NONE; TERMS],
            // The first one holds always.
            clauses: [Clause { mask: 0, value: 0 }; CLAUSES],
            term_count: 0,
            clause_count: 1,
            outcomes,
        }
    }

    /// Whether an event with this outcome may be wanted.
    #[inline(always)]
    pub fn wants_outcome(&self, event: &Event) -> bool {
        is_in(self.outcomes, event)
    }

    /// Whether the ends before, or those after, are wanted.
    #[inline(always)]
    pub fn wants(&self, event: &mut Event) -> bool {
        self.holds(event, false) || self.holds(event, true)
    }

    #[inline(always)]
    fn holds(&self, event: &mut Event, after: bool) -> bool {
        keep(&mut event.bits, 0);
        for n in 0..TERMS {
            if n as u32 >= self.term_count {
                break;
            }
            let tuple = if after { &event.after } else { &event.before };
            if self.terms[n].holds(event, tuple) {
                let bits = kept(&event.bits);
                keep(&mut event.bits, bits | 1 << n);
            }
        }
        for n in 0..CLAUSES {
            if n as u32 >= self.clause_count {
                break;
            }
            let clause = &self.clauses[n];
            if kept(&event.bits) & clause.mask == clause.value {
                return true;
            }
        }
        false
    }
}

// VERIFIER: in memory, so that the truth of one term does not multiply the states in which the next one is verified.

#[inline(always)]
fn keep(place: &mut u32, bits: u32) {
    // SAFETY: an exclusive reference.
    unsafe { ptr::write_volatile(place, bits) };
}

#[inline(always)]
fn kept(place: &u32) -> u32 {
    // SAFETY: a reference.
    unsafe { ptr::read_volatile(place) }
}

#[cfg(test)]
#[path = "filter_tests.rs"]
mod tests;
