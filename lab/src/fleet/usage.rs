// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What server and agents use in a time. Pure.

use std::time::Instant;

/// Seconds of processor time and received bytes up to a moment.
pub(super) struct Reading {
    pub(super) server: f64,
    pub(super) agents: f64,
    pub(super) received: f64,
    pub(super) at: Instant,
}

/// The differences of two readings.
pub(super) struct Used {
    pub(super) server: f64,
    pub(super) agents: f64,
    pub(super) received: f64,
    pub(super) seconds: f64,
}

impl Reading {
    pub(super) fn since(&self, before: &Self) -> Used {
        Used {
            server: self.server - before.server,
            agents: self.agents - before.agents,
            received: self.received - before.received,
            seconds: (self.at - before.at).as_secs_f64(),
        }
    }
}

impl Used {
    /// Returns how much more of `what` was used than in a time in which nothing happened.
    pub(super) fn beyond(&self, idle: &Self, what: fn(&Self) -> f64) -> f64 {
        what(self) - what(idle) * self.seconds / idle.seconds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_without_any_change_does_not_count() {
        let used = |server, seconds| Used {
            server,
            agents: 0.0,
            received: 0.0,
            seconds,
        };
        let beyond = used(3.0, 8.0).beyond(&used(1.0, 4.0), |used| used.server);
        assert!((beyond - 1.0).abs() < 1e-9, "{beyond}");
    }
}
