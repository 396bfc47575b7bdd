// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! What each object of programs has: its licence, and reports to a command of `portolan`.

use core::{ffi::c_void, ptr};

use aya_ebpf::{
    bindings::BPF_F_CURRENT_CPU,
    btf_maps::{PerCpuArray, PerfEventArray},
    helpers::generated as helpers,
};

/// Hands an event to the command that reads `out`. If it cannot be handed over, it is counted in
/// `losses`, at `unread`.
///
/// # Safety
/// The context is the running program's.
#[inline(always)]
pub unsafe fn hand_over<T, const N: usize>(
    context: *mut c_void,
    event: &mut T,
    out: &PerfEventArray,
    losses: &PerCpuArray<u64, N>,
    unread: u32,
) {
    // SAFETY: the context is valid, and the event as long as it says.
    let failed = unsafe {
        helpers::bpf_perf_event_output(
            context,
            ptr::from_ref(out).cast_mut().cast(),
            BPF_F_CURRENT_CPU,
            ptr::from_mut(event).cast(),
            size_of::<T>() as u64,
        )
    };
    if failed != 0 {
        lose(losses, unread);
    }
}

/// Counts an event that no command gets.
#[inline(always)]
pub fn lose<const N: usize>(losses: &PerCpuArray<u64, N>, why: u32) {
    if let Some(count) = losses.get_ptr_mut(why) {
        // SAFETY: this CPU's own element; another task that counts at the same moment may lose one.
        unsafe { *count += 1 };
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
