// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The clocks by which the kernel programs stamp entries and events, and the heap of this process.
//! Used by `datapath`, `portolan trace` and `agent`.

use nix::time::{ClockId, clock_gettime};

/// Returns nanoseconds since the machine started, by the coarse clock that stamps map entries.
pub fn now() -> u64 {
    nanoseconds(ClockId::CLOCK_MONOTONIC_COARSE)
}

/// Returns nanoseconds since the machine started, by the precise clock that stamps events.
pub fn monotonic() -> u64 {
    nanoseconds(ClockId::CLOCK_MONOTONIC)
}

fn nanoseconds(clock: ClockId) -> u64 {
    clock_gettime(clock).map_or(0, |time| {
        time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
    })
}

/// Returns unused heap memory to the kernel. Does nothing with C libraries other than glibc,
/// because they keep no unused memory.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes and returns plain integers; any thread may call it.
    unsafe {
        libc::malloc_trim(0);
    }
}
