// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Decides when the node's condition is reported in an event at its Node object: it serves, it is
//! unhealthy, it is healthy again. Gets the agent's health once a second. Pure.

use std::time::{Duration, Instant};

/// How long a condition must last before it is reported: otherwise a condition that changes every
/// second would cause an event every second.
const SETTLED: Duration = Duration::from_secs(10);

/// The condition that was reported last, and the present one.
#[derive(Debug, Default)]
pub(super) struct NodeCondition {
    /// The last report: `Some(Some(reason))` unhealthy, `Some(None)` healthy, `None` before the
    /// first.
    reported: Option<Option<&'static str>>,
    seen: Option<(Option<&'static str>, Instant)>,
}

impl NodeCondition {
    /// Takes the reason why the node is unhealthy; `None` if it is healthy. Returns true if this
    /// must be reported now.
    pub(super) fn is_news(&mut self, reason: Option<&'static str>, now: Instant) -> bool {
        let since = match self.seen {
            Some((seen, since)) if seen == reason => since,
            _ => now,
        };
        self.seen = Some((reason, since));
        let is_settled = now.saturating_duration_since(since) >= SETTLED;
        let is_news = is_settled && self.reported != Some(reason);
        if is_news {
            self.reported = Some(reason);
        }
        is_news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the seconds at which a condition is reported. `states`: the node's condition in each
    /// second.
    fn reported(states: &[Option<&'static str>]) -> Vec<usize> {
        let (mut condition, begin) = (NodeCondition::default(), Instant::now());
        let mut reported = Vec::new();
        for (second, state) in states.iter().enumerate() {
            let now = begin + Duration::from_secs(second as u64);
            if condition.is_news(*state, now) {
                reported.push(second);
            }
        }
        reported
    }

    #[test]
    fn a_node_condition_that_lasts_is_reported_once_for_each_reason() {
        let (none, faults, unlisted) = (None, Some("faults"), Some("not listed"));
        let flutters = [[faults, none]; 30].concat();
        for (states, seconds) in [
            (vec![none; 60], &[10][..]),
            (
                [[none; 20], [faults; 20], [faults; 20], [none; 20]].concat(),
                &[10, 30, 70],
            ),
            ([&[none; 20][..], &[faults; 9], &[none; 30]].concat(), &[10]),
            (flutters, &[]),
            ([[unlisted; 20], [faults; 20]].concat(), &[10, 30]),
        ] {
            assert_eq!(reported(&states), seconds, "{states:?}");
        }
    }
}
