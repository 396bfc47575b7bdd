// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The clock that the kernel programs stamp entries with. Used by `sweep` and `read`.

/// Nanoseconds since the machine started.
pub(crate) fn now() -> u64 {
    let clock = nix::time::ClockId::CLOCK_MONOTONIC_COARSE;
    nix::time::clock_gettime(clock).map_or(0, |time| {
        time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
    })
}
