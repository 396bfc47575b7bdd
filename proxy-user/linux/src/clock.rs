// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The clocks that the kernel programs stamp entries and events with. Used by `sweep`, `read` and
//! `trace`.

/// Nanoseconds since the machine started.
pub fn now() -> u64 {
    let clock = nix::time::ClockId::CLOCK_MONOTONIC_COARSE;
    nix::time::clock_gettime(clock).map_or(0, |time| {
        time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
    })
}

/// Nanoseconds since the machine started, by the precise clock, which events have.
pub fn monotonic() -> u64 {
    let clock = nix::time::ClockId::CLOCK_MONOTONIC;
    nix::time::clock_gettime(clock).map_or(0, |time| {
        time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
    })
}
