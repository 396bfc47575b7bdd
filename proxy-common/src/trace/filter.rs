// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Filters of events: a few terms, and clauses over their truth. The same function runs in the
//! kernel and on the host.

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
    /// A port range in the host's order; or a protocol, family, hook bits, interface, process, or
    /// service port, in `low`.
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

    /// Whether an event has the property, by its ends before or after translation (`tuple`).
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

/// Whether a mask of outcomes contains an event's outcome.
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

/// A filter: an event is wanted if one of its clauses holds. A term holds by the ends before or by
/// those after translation, so that a negation excludes both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Filter {
    pub terms: [Term; TERMS],
    pub clauses: [Clause; CLAUSES],
    pub term_count: u32,
    pub clause_count: u32,
    /// Outcomes that are wanted at all, as bits: checked first, because most packets are of no
    /// service.
    pub outcomes: u64,
}

impl Filter {
    /// Wants every event with these outcomes.
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

    /// Whether an event with this outcome may be wanted.
    #[inline(always)]
    pub fn wants_outcome(&self, event: &Event) -> bool {
        is_in(self.outcomes, event)
    }

    /// Whether an event is wanted. `repeat` calls a step with 0, 1, ... below a number until it
    /// returns 1.
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

    /// Like [`Self::wants_by`], on the host.
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

/// One step of the evaluation.
pub type Step = extern "C" fn(u64, &mut Work<'_>) -> u64;

/// An evaluation in progress.
pub struct Work<'a> {
    filter: &'a Filter,
    event: &'a Event,
    /// The truth of each term.
    bits: u32,
    found: u32,
}

/// Evaluates a term. Returns 1 after the last one.
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

/// Evaluates a clause. Returns 1 if it holds, and after the last one.
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
