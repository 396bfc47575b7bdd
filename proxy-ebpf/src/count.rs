// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! What a program decided, and the one counter that says so.

use core::arch::asm;

use aya_ebpf::bindings::{TC_ACT_SHOT, TC_ACT_UNSPEC};
use proxy_common::Counter;

use crate::maps::COUNTERS;

/// Counts from a hook in process context, which a packet's program may interrupt.
#[inline(always)]
pub fn add(counter: Counter) {
    add_at(counter as u32);
}

/// The same for a counter's place in the array.
#[inline(always)]
pub fn add_at(counter: u32) {
    if let Some(count) = COUNTERS.get_ptr_mut(counter) {
        // SAFETY: this CPU's own element; the addition is one atomic instruction.
        unsafe {
            asm!("lock *(u64 *)({count} + 0) += {one}", count = in(reg) count, one = in(reg) 1_u64)
        };
    }
}

/// Lets a packet go on to the programs and filters of others behind ours: TC_ACT_UNSPEC, which tcx calls TCX_NEXT.
/// TC_ACT_OK would end the chain and switch them off.
pub const PASS: i32 = TC_ACT_UNSPEC;

/// Actions of our own, beside tc's: they never leave a program.
const RESET: i32 = 0x100;
const UNREACHABLE: i32 = 0x101;

/// A program's result and its reason, in one word so that subprograms can return it.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Outcome(u32);

impl Outcome {
    const fn new(action: i32, counter: Counter) -> Self {
        Self((action as u32) << 16 | counter as u32)
    }
    #[inline(always)]
    pub const fn pass(counter: Counter) -> Self {
        Self::new(PASS, counter)
    }
    #[inline(always)]
    pub const fn drop(counter: Counter) -> Self {
        Self::new(TC_ACT_SHOT, counter)
    }
    /// Whether ingress has sent the packet on to its destination.
    #[inline(always)]
    pub const fn is_on_its_way(self) -> bool {
        self.0 == Self::pass(Counter::ForwardedNew).0
            || self.0 == Self::pass(Counter::ForwardedHit).0
            || self.0 == Self::pass(Counter::ReplyPassed).0
            || self.0 == Self::pass(Counter::ReplyUnmasqueraded).0
    }
    /// Still to be answered by `reject`: a stack frame less than calling it from where this is known.
    #[inline(always)]
    pub const fn reject(reset: bool, counter: Counter) -> Self {
        Self::new(if reset { RESET } else { UNREACHABLE }, counter)
    }
    /// Whether to answer, with a reset or not; and the outcome once that is done or was in vain.
    #[inline(always)]
    pub const fn wants_answer(self) -> Option<bool> {
        match self.action() {
            RESET => Some(true),
            UNREACHABLE => Some(false),
            _ => None,
        }
    }
    /// The same reason with another action.
    #[inline(always)]
    pub const fn with_action(self, action: i32) -> Self {
        Self((action as u32) << 16 | self.counter())
    }
    /// The reason.
    #[inline(always)]
    pub const fn counter(self) -> u32 {
        self.0 & 0xffff
    }
    /// A fault of the programs or of what is in their maps.
    #[inline(always)]
    pub const fn is_fault(self) -> bool {
        self.counter() == Counter::DroppedInconsistent as u32
    }
    /// Nothing that a service is about.
    #[inline(always)]
    pub const fn is_untouched(self) -> bool {
        self.counter() == Counter::Untouched as u32
    }
    /// Counts the reason and gives the kernel its answer.
    #[inline(always)]
    pub fn conclude(self) -> i32 {
        if let Some(count) = COUNTERS.get_ptr_mut(self.counter()) {
            // SAFETY: this CPU's own element; programs do not interrupt each other at tc.
            unsafe { *count += 1 };
        }
        self.action()
    }
    /// The upper half, which may be negative.
    #[inline(always)]
    const fn action(self) -> i32 {
        (self.0 as i32) >> 16
    }
}
