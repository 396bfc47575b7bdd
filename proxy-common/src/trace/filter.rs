// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Filters for the events of `portolan trace`: a few terms, and clauses that combine them. The same
//! function runs in the kernel and on the host.

use super::{Event, Tuple};
use crate::{Addr, V6};

/// Maximum number of terms in a filter.
pub const TERMS: usize = 16;
/// Maximum number of clauses in a filter.
pub const CLAUSES: usize = 32;

/// A condition on one property of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Term {
    /// Which property: [`Term::NET`], [`Term::PORT`] and so on.
    pub kind: u32,
    /// The end that must meet an address or port condition: [`Term::SRC`] or [`Term::DST`]. With
    /// both bits, one of the ends is enough.
    pub sides: u32,
    /// The smallest port of a range, in the host's order. For other kinds the protocol, family,
    /// hook bits, interface, process, or service port.
    pub low: u32,
    pub high: u32,
    /// For [`Term::NET`]: the addresses that equal `address` under `mask`.
    pub address: V6,
    pub mask: V6,
}

impl Term {
    pub const SRC: u32 = 1;
    pub const DST: u32 = 2;

    /// The address of an end named by `sides` is in the range.
    pub const NET: u32 = 0;
    /// The port of an end named by `sides` is in the range.
    pub const PORT: u32 = 1;
    pub const PROTOCOL: u32 = 2;
    pub const FAMILY: u32 = 3;
    /// The bit of the event's hook is set in `low`.
    pub const HOOK: u32 = 4;
    pub const INTERFACE: u32 = 5;
    pub const PROCESS: u32 = 6;
    /// The event's service port has the id in `low`.
    pub const SERVICE: u32 = 7;
    /// The bit of the event's outcome is set in `low`, or for outcomes from 32 on in `high`.
    pub const OUTCOME: u32 = 8;

    pub const NONE: Self = Self {
        kind: Self::HOOK,
        sides: 0,
        low: 0,
        high: 0,
        address: V6 { octets: [0; 16] },
        mask: V6 { octets: [0; 16] },
    };

    /// Whether an event meets the condition; `tuple` is its addresses and ports before or after
    /// translation.
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

/// Whether a mask of outcomes has the bit of the event's outcome.
#[inline(always)]
fn is_in(outcomes: u64, event: &Event) -> bool {
    outcomes >> (event.outcome & 63) & 1 != 0
}

/// A conjunction: terms that must hold and terms that must not, one bit for each term.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Clause {
    pub mask: u32,
    /// Those terms of `mask` that must hold; the others must not.
    pub value: u32,
}

/// A filter: an event is wanted if one of the clauses holds. A term holds if the addresses and
/// ports before or after translation meet it; so a negated term excludes both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Filter {
    pub terms: [Term; TERMS],
    pub clauses: [Clause; CLAUSES],
    pub term_count: u32,
    pub clause_count: u32,
    /// Mask of the outcomes that are wanted at all: checked first, because most packets concern no
    /// service.
    pub outcomes: u64,
}

impl Filter {
    /// Returns a filter that wants every event whose outcome is in this mask.
    pub const fn all(outcomes: u64) -> Self {
        Self {
            terms: [Term::NONE; TERMS],
            // The first clause always holds.
            clauses: [Clause { mask: 0, value: 0 }; CLAUSES],
            term_count: 0,
            clause_count: 1,
            outcomes,
        }
    }

    /// Whether the filter may want an event with this outcome.
    #[inline(always)]
    pub fn wants_outcome(&self, event: &Event) -> bool {
        is_in(self.outcomes, event)
    }

    /// Whether the filter wants an event. `repeat` calls a step with 0, 1, ... below a number until
    /// the step returns 1.
    // VERIFIER: in the kernel, `repeat` is its own loop, so that a step is verified once.
    #[inline(always)]
    pub fn wants_by(&self, event: &Event, repeat: impl Fn(u32, &mut Work<'_>, Step)) -> bool {
        let mut work = Work {
            filter: self,
            event,
            bits: 0,
            found: 0,
        };
        repeat(TERMS as u32, &mut work, term);
        repeat(CLAUSES as u32, &mut work, clause);
        work.found != 0
    }

    /// Like [`Self::wants_by`], for the command on the host: whether the filter wants an event.
    #[cfg(any(test, feature = "user"))]
    pub fn wants(&self, event: &Event) -> bool {
        self.wants_by(event, |times, work, step| {
            for n in 0..times {
                if step(n.into(), work) != 0 {
                    break;
                }
            }
        })
    }
}

/// A step of the evaluation: evaluates the term or clause of this index.
pub type Step = extern "C" fn(u64, &mut Work<'_>) -> u64;

/// The evaluation of a filter for one event.
pub struct Work<'a> {
    filter: &'a Filter,
    event: &'a Event,
    /// The results of the terms, one bit each: set if the term holds.
    bits: u32,
    found: u32,
}

/// Evaluates the `n`-th term. Returns 1 after the last one, to stop the loop.
extern "C" fn term(n: u64, work: &mut Work<'_>) -> u64 {
    if n >= TERMS as u64 || n >= work.filter.term_count as u64 {
        return 1;
    }
    let term = &work.filter.terms[n as usize];
    let event = work.event;
    let holds = term.holds(event, &event.before) || term.holds(event, &event.after);
    work.bits |= (holds as u32) << n;
    0
}

/// Evaluates the `n`-th clause. Returns 1, to stop the loop, if it holds and after the last one.
extern "C" fn clause(n: u64, work: &mut Work<'_>) -> u64 {
    if n >= CLAUSES as u64 || n >= work.filter.clause_count as u64 {
        return 1;
    }
    let clause = &work.filter.clauses[n as usize];
    if work.bits & clause.mask == clause.value {
        work.found = 1;
        return 1;
    }
    0
}

#[cfg(test)]
#[path = "filter_tests.rs"]
mod tests;
