// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The time of the flow tables: it passes by steps of a sequence, and stands still otherwise.

use std::{
    io,
    time::{Duration, Instant},
};

use crate::subject::Subject;

impl Subject {
    /// Makes every flow and affinity older.
    pub(crate) fn pass_time(&mut self, seconds: u64) {
        let past = seconds * 1_000_000_000;
        self.flows.0.change(|entry| entry.last_seen -= past);
        self.flows.1.change(|entry| entry.last_seen -= past);
        self.affinity.0.change(|entry| entry.last_used -= past);
        self.affinity.1.change(|entry| entry.last_used -= past);
    }
    /// Makes flows as much younger as real time has passed, so that it does not matter how long a run takes: programs note some
    /// packets once a second.
    pub(crate) fn hold_time(&mut self) {
        // Far less than that second; what the programs take for the present is no older than the margin.
        const OFTEN: Duration = Duration::from_millis(200);
        const MARGIN: Duration = Duration::from_millis(50);
        let passed = self.held.elapsed();
        if passed < OFTEN {
            return;
        }
        let present = nanoseconds(uptime() - MARGIN);
        let younger =
            |last_seen: u64| (last_seen + nanoseconds(passed)).min(present.max(last_seen));
        self.flows
            .0
            .change(|entry| entry.last_seen = younger(entry.last_seen));
        self.flows
            .1
            .change(|entry| entry.last_seen = younger(entry.last_seen));
        self.held = Instant::now();
    }
}

fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos().try_into().expect("of some centuries")
}

/// The time of the monotonic clock.
fn uptime() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the time is written there.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
