// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! The outcome of a program's run: its action, and the one counter that names the reason.

use core::arch::asm;

use aya_ebpf::bindings::{TC_ACT_REDIRECT, TC_ACT_SHOT, TC_ACT_UNSPEC};
use proxy_common::Counter;

use crate::maps::COUNTERS;

/// Counts from a socket hook: it runs in process context, which a tc program may interrupt.
#[inline(always)]
pub fn add(counter: Counter) {
    add_at(counter as u32);
}

/// Counts a packet that XDP takes. Programs do not interrupt each other at tc and XDP.
#[inline(always)]
pub fn one(counter: Counter) {
    if let Some(count) = COUNTERS.get_ptr_mut(counter as u32) {
        // SAFETY: this CPU's own element.
        unsafe { *count += 1 };
    }
}

/// Counts like [`add`], by the counter's index in the array.
#[inline(always)]
pub fn add_at(counter: u32) {
    if let Some(count) = COUNTERS.get_ptr_mut(counter) {
        // SAFETY: this CPU's own element; the addition is one atomic instruction.
        unsafe {
            asm!("lock *(u64 *)({count} + 0) += {one}", count = in(reg) count, one = in(reg) 1_u64)
        };
    }
}

/// Lets a packet go on to the programs and filters of others behind ours: TC_ACT_UNSPEC, which tcx
/// calls TCX_NEXT. TC_ACT_OK would end the chain and switch them off.
pub const PASS: i32 = TC_ACT_UNSPEC;

/// Action of a packet that belongs to a flow. The packet passes as with [`PASS`], unless `redirect`
/// sends it past the stack. This is no action of tc's, and no program returns it.
const FORWARD: i32 = 0x100;

/// A program's action, and the counter that names the reason; in one word so that subprograms can
/// return it.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Outcome(u32);

impl Outcome {
    #[inline(always)]
    const fn new(action: i32, counter: Counter) -> Self {
        Self((action as u32) << 16 | counter as u32)
    }
    /// Returns the outcome as one word, for an exported subprogram.
    #[inline(always)]
    pub const fn word(self) -> u32 {
        self.0
    }
    /// Restores an outcome from [`Self::word`].
    #[inline(always)]
    pub const fn from_word(word: u32) -> Self {
        Self(word)
    }
    /// Passes the packet on to the stack and to foreign programs.
    #[inline(always)]
    pub const fn pass(counter: Counter) -> Self {
        Self::new(PASS, counter)
    }
    /// Sends the packet on to its flow's other end: through the stack, or past the stack by
    /// `redirect`.
    #[inline(always)]
    pub const fn forward(counter: Counter) -> Self {
        Self::new(FORWARD, counter)
    }
    #[inline(always)]
    pub const fn drop(counter: Counter) -> Self {
        Self::new(TC_ACT_SHOT, counter)
    }
    /// The packet has already left the programs by one of tc's actions.
    #[inline(always)]
    pub const fn sent(action: i32, counter: Counter) -> Self {
        Self::new(action, counter)
    }
    /// Whether ingress forwards the packet.
    #[inline(always)]
    pub const fn is_forwarded(self) -> bool {
        self.action() == FORWARD
    }
    /// The same reason with another of tc's actions.
    #[inline(always)]
    pub const fn with_action(self, action: i32) -> Self {
        Self((action as u32) << 16 | self.counter())
    }
    /// The same action for another reason, by its index.
    #[inline(always)]
    pub const fn counted_as(self, counter: u32) -> Self {
        Self((self.action() as u32) << 16 | counter & 0xffff)
    }
    /// The reason, as an index into `counters`.
    #[inline(always)]
    pub const fn counter(self) -> u32 {
        self.0 & 0xffff
    }
    /// Whether the programs, or the maps' content, are at fault.
    #[inline(always)]
    pub const fn is_fault(self) -> bool {
        self.counter() == Counter::DroppedInconsistent as u32
    }
    /// Whether this is the reason.
    #[inline(always)]
    pub const fn is_of(self, counter: Counter) -> bool {
        self.counter() == counter as u32
    }
    /// Whether the packet has left by a redirect.
    #[inline(always)]
    pub const fn is_redirected(self) -> bool {
        self.action() == TC_ACT_REDIRECT
    }
    /// Whether no service is concerned.
    #[inline(always)]
    pub const fn is_untouched(self) -> bool {
        self.counter() == Counter::Untouched as u32
    }
    /// Counts the reason and returns the action to the kernel.
    #[inline(always)]
    pub fn conclude(self) -> i32 {
        if let Some(count) = COUNTERS.get_ptr_mut(self.counter()) {
            // SAFETY: this CPU's own element; programs do not interrupt each other at tc.
            unsafe { *count += 1 };
        }
        match self.action() {
            FORWARD => PASS,
            action => action,
        }
    }
    /// The upper half, which may be negative.
    #[inline(always)]
    const fn action(self) -> i32 {
        (self.0 as i32) >> 16
    }
}
