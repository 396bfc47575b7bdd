// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Safe wrappers for kernel helpers that concern no packet: clocks, random numbers, loops.

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

/// Calls `step` with 0, 1, ... below `times` and with `context`, until it returns 1 ("stop").
///
/// The kernel's own loop (Linux 5.17): the verifier sees its body once, not once for every round.
#[inline(always)]
pub fn repeat<T>(times: u32, context: &mut T, step: extern "C" fn(u64, &mut T) -> u64) {
    let step = step as *mut core::ffi::c_void;
    let context = core::ptr::from_mut(context).cast();
    // SAFETY: the kernel passes `context` on to `step` as it is and keeps nothing.
    unsafe { helpers::bpf_loop(times, step, context, 0) };
}
