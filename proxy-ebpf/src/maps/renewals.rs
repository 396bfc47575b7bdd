// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! When packets last took the stack to renew records of `forwarding: auto`. On its way into a pod,
//! such a packet waits in a CPU's backlog queue. Called by `tc`.

use crate::{maps::RENEWALS, packet::headers::Ports};

/// Number of times that are kept; conversations whose ports give the same index share one.
pub const COUNT: u32 = 1024;
/// How long such a packet may wait, in nanoseconds. On a busy CPU the queue's thread must wait for
/// its turn.
const QUEUED: u64 = 100_000_000;

/// Notes that a packet of the conversation with these ports takes the stack at `now`. The sockets
/// of a conversation move between CPUs, so all CPUs must know it.
#[inline(always)]
pub fn note(ports: Ports, now: u64) {
    if let Some(at) = RENEWALS.get_ptr_mut(index(ports)) {
        // SAFETY: an aligned word of a live element; a single store.
        unsafe { at.write_volatile(now) };
    }
}

/// Whether an earlier packet of a conversation with these ports may wait in a queue at `now`.
#[inline(always)]
pub fn are_queued(ports: Ports, now: u64) -> bool {
    RENEWALS.get_ptr(index(ports)).is_some_and(|at| {
        // SAFETY: as above; a single load.
        let at = unsafe { at.read_volatile() };
        now.wrapping_sub(at) < QUEUED
    })
}

/// Returns the index of a conversation; both directions have the same.
#[inline(always)]
fn index(ports: Ports) -> u32 {
    (ports.src.host() ^ ports.dst.host()) as u32 % COUNT
}
