// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! The outcome of a program's run: its action, and the one counter that names the reason.

use core::arch::asm;

use aya_ebpf::bindings::{TC_ACT_SHOT, TC_ACT_UNSPEC};
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

/// Lets a packet go on to the programs and filters of others behind ours: TC_ACT_UNSPEC, which tcx calls TCX_NEXT.
/// TC_ACT_OK would end the chain and switch them off.
pub const PASS: i32 = TC_ACT_UNSPEC;

// Actions of our own beside tc's, which never leave a program.
/// Passes a packet of a flow, like [`PASS`]. `redirect` may send it instead.
const FORWARD: i32 = 0x100;
/// `reject` answers with a TCP reset.
const RESET: i32 = 0x101;
/// `reject` answers with an ICMP port unreachable.
const UNREACHABLE: i32 = 0x102;
/// The packet in the workspace belongs to no flow: `begin` decides about it.
const BEGIN: i32 = 0x103;
/// Ingress has marked the packet in the workspace: `marked` decides about it.
const MARKED: i32 = 0x104;
/// The packet in the workspace may begin a conversation past every service: `direct` decides about it.
const DIRECT: i32 = 0x105;

/// The packet in the workspace belongs to the flow whose entry was found: `redirect` sends it on.
const SEND: i32 = 0x106;
/// The same for a flow that begins with it.
const SEND_FIRST: i32 = 0x107;

/// A program's action, and the counter that names the reason; in one word so that subprograms can return it.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Outcome(u32);

impl Outcome {
    #[inline(always)]
    const fn new(action: i32, counter: Counter) -> Self {
        Self((action as u32) << 16 | counter as u32)
    }
    /// As one word, for a subprogram that is exported.
    #[inline(always)]
    pub const fn word(self) -> u32 {
        self.0
    }
    /// From [`Self::word`].
    #[inline(always)]
    pub const fn from_word(word: u32) -> Self {
        Self(word)
    }
    /// Leaves the packet to the stack and to foreign programs.
    #[inline(always)]
    pub const fn pass(counter: Counter) -> Self {
        Self::new(PASS, counter)
    }
    /// Sends the packet on to its flow's other end: through the stack, or past it by `redirect`.
    #[inline(always)]
    pub const fn forward(counter: Counter) -> Self {
        Self::new(FORWARD, counter)
    }
    #[inline(always)]
    pub const fn drop(counter: Counter) -> Self {
        Self::new(TC_ACT_SHOT, counter)
    }
    /// The packet has left the node's programs by one of tc's actions.
    #[inline(always)]
    pub const fn sent(action: i32, counter: Counter) -> Self {
        Self::new(action, counter)
    }
    /// Asks the caller to have `redirect` send the packet on, by the entry that was found or by that of a flow which begins. The
    /// counter is for what the stack gets.
    #[inline(always)]
    pub const fn send(first: bool, counter: Counter) -> Self {
        Self::new(if first { SEND_FIRST } else { SEND }, counter)
    }
    /// Whether this is [`Self::send`], and then for which entry.
    #[inline(always)]
    pub const fn is_to_send(self) -> Option<bool> {
        match self.action() {
            SEND => Some(false),
            SEND_FIRST => Some(true),
            _ => None,
        }
    }
    /// Asks the caller to run `reject`, with a reset or not.
    #[inline(always)]
    pub const fn reject(reset: bool, counter: Counter) -> Self {
        Self::new(if reset { RESET } else { UNREACHABLE }, counter)
    }
    /// Asks the caller to run `begin`, which would not fit on the stack beside the program that asks.
    pub const UNKNOWN: Self = Self::new(BEGIN, Counter::Untouched);
    /// Asks the caller to run `marked`, for the same reason.
    pub const MARKED: Self = Self::new(MARKED, Counter::Untouched);

    /// Asks the caller to run `direct`, for the same reason.
    pub const DIRECT: Self = Self::new(DIRECT, Counter::Untouched);

    /// Whether this is [`Self::DIRECT`].
    #[inline(always)]
    pub const fn is_direct(self) -> bool {
        self.action() == DIRECT
    }
    /// Whether this is [`Self::UNKNOWN`].
    #[inline(always)]
    pub const fn is_unknown(self) -> bool {
        self.action() == BEGIN
    }
    /// Whether this is [`Self::MARKED`].
    #[inline(always)]
    pub const fn is_marked(self) -> bool {
        self.action() == MARKED
    }
    /// Whether ingress forwards the packet.
    #[inline(always)]
    pub const fn is_forwarded(self) -> bool {
        self.action() == FORWARD
    }
    /// Whether `reject` is to answer, and then whether with a reset.
    #[inline(always)]
    pub const fn wants_answer(self) -> Option<bool> {
        match self.action() {
            RESET => Some(true),
            UNREACHABLE => Some(false),
            _ => None,
        }
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
    /// What a shadow makes of it: the packet passes, whatever it would have met.
    #[inline(always)]
    pub const fn watched(self) -> Self {
        self.with_action(PASS)
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
        // What asks our own programs for something and was not granted is no action of tc's.
        match self.action() {
            FORWARD.. => PASS,
            action => action,
        }
    }
    /// The upper half, which may be negative.
    #[inline(always)]
    const fn action(self) -> i32 {
        (self.0 as i32) >> 16
    }
}
