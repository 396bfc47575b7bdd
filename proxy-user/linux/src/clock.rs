// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The clocks by which the kernel programs stamp entries and events. Used by `datapath` and
//! `portolan trace`.

/// Returns nanoseconds since the machine started, by the coarse clock that stamps map entries.
pub fn now() -> u64 {
    let clock = nix::time::ClockId::CLOCK_MONOTONIC_COARSE;
    nix::time::clock_gettime(clock).map_or(0, |time| {
        time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
    })
}

/// Returns nanoseconds since the machine started, by the precise clock that stamps events.
pub fn monotonic() -> u64 {
    let clock = nix::time::ClockId::CLOCK_MONOTONIC;
    nix::time::clock_gettime(clock).map_or(0, |time| {
        time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
    })
}
