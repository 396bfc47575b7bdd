// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Safe wrappers for kernel helpers that concern no packet: clocks, random numbers, loops; and
//! accesses to memory that others change.

use core::{arch::asm, mem::MaybeUninit};

use aya_ebpf::helpers::generated as helpers;

/// Returns the time of the coarse monotonic clock, in nanoseconds.
#[inline(always)]
pub fn now() -> u64 {
    // SAFETY: no arguments.
    unsafe { helpers::bpf_ktime_get_coarse_ns() }
}

/// Returns the kernel's count of timer ticks. Compiled to a load, not to a call.
#[inline(always)]
pub fn tick() -> u64 {
    // SAFETY: no arguments.
    unsafe { helpers::bpf_jiffies64() }
}

/// Returns a random number, uniform over 32 bits.
#[inline(always)]
pub fn random() -> u32 {
    // SAFETY: no arguments.
    unsafe { aya_ebpf::helpers::bpf_get_prandom_u32() }
}

/// Returns the pointer as it is. For the compiler all memory counts as touched: nothing that was
/// read before is taken for what is there now.
#[inline(always)]
pub fn reread<T>(mut pointer: *mut T) -> *mut T {
    // SAFETY: a register is copied to itself.
    unsafe { asm!("{pointer} = {pointer}", pointer = inout(reg) pointer) };
    pointer
}

/// Copies an element of a map to `buffer`; returns the copy, and the element. The copy must be
/// checked: the kernel may have reused the element meanwhile.
///
/// # Safety
/// The kernel keeps the element's memory, and every bit pattern is a valid `T`.
#[inline(always)]
pub unsafe fn copy<T>(element: *mut T, buffer: &mut MaybeUninit<T>) -> (&T, *mut T) {
    // SAFETY: both are valid for a `T`.
    unsafe { core::ptr::copy_nonoverlapping(element, buffer.as_mut_ptr(), 1) };
    // The compiler must not read the element again, neither for the check nor for a use: the copy
    // that is checked is the one that is used.
    let element = reread(element);
    // SAFETY: copied above.
    (unsafe { buffer.assume_init_ref() }, element)
}

/// Adds one to a word by an atomic instruction.
///
/// # Safety
/// The word is an element's that exists.
#[inline(always)]
pub unsafe fn increment(word: *mut u64) {
    // SAFETY: the caller's promise.
    unsafe { asm!("lock *(u64 *)({word} + 0) += {one}", word = in(reg) word, one = in(reg) 1_u64) };
}

/// What a step of [`repeat`] returns to end the loop.
pub const STOP: u64 = 1;

/// Calls `step` with 0, 1, ... below `times` and with `context`, until it returns [`STOP`].
///
/// The kernel's own loop (Linux 5.17): the verifier sees its body once, not once for every round.
#[inline(always)]
pub fn repeat<T>(times: u32, context: &mut T, step: extern "C" fn(u64, &mut T) -> u64) {
    let step = step as *mut core::ffi::c_void;
    let context = core::ptr::from_mut(context).cast();
    // SAFETY: the kernel passes `context` on to `step` as it is and keeps nothing.
    unsafe { helpers::bpf_loop(times, step, context, 0) };
}
