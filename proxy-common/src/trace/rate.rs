// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rate limit of events: a number of events in each second, for all CPUs together.

/// The element of the map `trace_rate`. Programs on several CPUs change it without a lock: at the
/// change of a second, a few events more may pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Rate {
    /// Events a second; 0: no limit.
    pub limit: u64,
    /// The second whose events are counted in `count`.
    pub second: u64,
    pub count: u64,
}

impl Rate {
    /// Counts one event at the time `now`, in nanoseconds; `true` if it is within the limit.
    #[inline(always)]
    pub fn takes(&mut self, now: u64) -> bool {
        if self.limit == 0 {
            return true;
        }
        let second = now / 1_000_000_000;
        if self.second != second {
            self.second = second;
            self.count = 0;
        }
        if self.count >= self.limit {
            return false;
        }
        self.count += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_limit_applies_to_each_second() {
        let mut rate = Rate {
            limit: 2,
            ..Rate::default()
        };
        let second = 1_000_000_000;
        let taken: Vec<_> = [5, 6, 7, second, second + 1, second + 2, 9 * second]
            .into_iter()
            .map(|now| rate.takes(now))
            .collect();
        assert_eq!(taken, [true, true, false, true, true, false, true]);
        let mut endless = Rate::default();
        assert!((0..1000).all(|now| endless.takes(now)));
    }
}
