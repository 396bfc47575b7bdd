// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! The outcome of a program's run on a packet: its action, and the one counter that says why.

use aya_ebpf::bindings::{TC_ACT_REDIRECT, TC_ACT_SHOT, TC_ACT_UNSPEC};
use proxy_common::Counter;

use crate::{helpers, maps::COUNTERS};

/// Adds one to a counter from a socket hook. The addition is atomic: the hook runs in process
/// context, which a tc program may interrupt.
#[inline(always)]
pub fn add(counter: Counter) {
    add_at(counter as u32);
}

/// Adds one to the counter with this index, at tc or XDP. A plain addition is enough, unlike in
/// `add`: the programs there do not interrupt each other on a CPU.
#[inline(always)]
pub fn one(counter: u32) {
    if let Some(count) = COUNTERS.get_ptr_mut(counter) {
        // SAFETY: this CPU's own element.
        unsafe { *count += 1 };
    }
}

/// Like [`add`], for the counter with this index in the array `counters`.
#[inline(always)]
pub fn add_at(counter: u32) {
    if let Some(count) = COUNTERS.get_ptr_mut(counter) {
        // SAFETY: this CPU's own element.
        unsafe { helpers::increment(count) };
    }
}

/// Action of tc that lets a packet go on to foreign programs and filters behind ours:
/// TC_ACT_UNSPEC, which tcx calls TCX_NEXT. TC_ACT_OK would end the chain and switch them off.
pub const PASS: i32 = TC_ACT_UNSPEC;

/// A program's action, and the counter that says why; in one word so that subprograms can return
/// it.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Outcome(u32);

impl Outcome {
    /// Returns the outcome as one word, for an exported subprogram.
    #[inline(always)]
    pub const fn word(self) -> u32 {
        self.0
    }
    #[inline(always)]
    pub const fn from_word(word: u32) -> Self {
        Self(word)
    }
    /// Passes the packet on to the stack and to foreign programs.
    #[inline(always)]
    pub const fn pass(counter: Counter) -> Self {
        Self::sent(PASS, counter)
    }
    #[inline(always)]
    pub const fn drop(counter: Counter) -> Self {
        Self::sent(TC_ACT_SHOT, counter)
    }
    /// Outcome of a packet with this action, by which a helper of the kernel may have sent it.
    #[inline(always)]
    pub const fn sent(action: i32, counter: Counter) -> Self {
        Self((action as u32) << 16 | counter as u32)
    }
    /// The same action with another counter; `counter` is the index into the array `counters`.
    #[inline(always)]
    pub const fn counted_as(self, counter: u32) -> Self {
        Self((self.action() as u32) << 16 | counter & 0xffff)
    }
    /// Returns the counter as an index into the array `counters`.
    #[inline(always)]
    pub const fn counter(self) -> u32 {
        self.0 & 0xffff
    }
    #[inline(always)]
    pub const fn is_of(self, counter: Counter) -> bool {
        self.counter() == counter as u32
    }
    /// Whether the packet has left by a redirect of the kernel.
    #[inline(always)]
    pub const fn is_redirected(self) -> bool {
        self.action() == TC_ACT_REDIRECT
    }
    /// Whether the packet concerns no service.
    #[inline(always)]
    pub const fn is_untouched(self) -> bool {
        self.counter() == Counter::Untouched as u32
    }
    /// Adds one to the counter and returns the action for the kernel.
    #[inline(always)]
    pub fn conclude(self) -> i32 {
        one(self.counter());
        self.action()
    }
    /// Returns the action: the upper half of the word, which may be negative.
    #[inline(always)]
    const fn action(self) -> i32 {
        (self.0 as i32) >> 16
    }
}
