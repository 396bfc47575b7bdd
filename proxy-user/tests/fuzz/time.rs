// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Controls the times in the flow tables: only operations of a sequence let time pass.

use std::{
    io,
    time::{Duration, Instant},
};

use proxy_common::{Addr, FlowEntry, FlowKey, FlowKind, Protocol, flow::coarse};

use crate::subject::Subject;

impl Subject {
    /// Makes every flow and session affinity older by some seconds.
    pub(crate) fn pass_time(&mut self, seconds: u64) {
        let past = seconds * 1_000_000_000;
        let older = |at: u64| at.wrapping_sub(past);
        self.flows.0.change(|key, entry| shift(key, entry, older));
        self.flows.1.change(|key, entry| shift(key, entry, older));
        self.affinity.0.change(|_, entry| entry.last_used -= past);
        self.affinity.1.change(|_, entry| entry.last_used -= past);
    }
    /// Makes flows younger by the real time since the last call, so that the real duration of a run
    /// does not matter: programs record some packets only once a second.
    pub(crate) fn hold_time(&mut self) {
        // Several times a second. The programs' clock is at most the margin behind real time.
        const OFTEN: Duration = Duration::from_millis(200);
        const MARGIN: Duration = Duration::from_millis(50);
        let passed = self.held.elapsed();
        if passed < OFTEN {
            return;
        }
        let present = nanoseconds(uptime() - MARGIN);
        let younger =
            |last_seen: u64| (last_seen + nanoseconds(passed)).min(present.max(last_seen));
        self.flows.0.change(|key, entry| shift(key, entry, younger));
        self.flows.1.change(|key, entry| shift(key, entry, younger));
        self.held = Instant::now();
    }
}

/// Changes the times in a flow's entry by `to`.
fn shift<A: Addr>(key: &FlowKey<A>, entry: &mut FlowEntry<A>, to: impl Fn(u64) -> u64) {
    entry.last_seen = to(entry.last_seen);
    if key.protocol == Protocol::UDP && entry.kind == FlowKind::ORIGINAL {
        entry.reuse = coarse(to(u64::from(entry.reuse) << 20));
    }
}

fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos().try_into().expect("of some centuries")
}

/// Returns the time of the monotonic clock.
fn uptime() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes to a live structure of the right type.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
