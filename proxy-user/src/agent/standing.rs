// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Says at the Node object how this node stands: an event when it begins to serve, when it becomes unhealthy, and when it is healthy again.
//! In: the agent's health, once a second. Out: a report when it has changed for good. Pure.

use std::time::{Duration, Instant};

/// A state that does not last so long is not told: what lasts 30 s is unhealthy already, and a state that changes each second would be told
/// for ever.
const SETTLED: Duration = Duration::from_secs(10);

/// What was told last, and what has been seen since.
#[derive(Debug, Default)]
pub(super) struct Standing {
    /// Why the node is unhealthy; `Some(None)` if it is healthy, none before anything was told.
    told: Option<Option<&'static str>>,
    seen: Option<(Option<&'static str>, Instant)>,
}

impl Standing {
    /// Takes in the reason why the node is unhealthy, if it is. Returns whether to tell it now.
    pub(super) fn is_news(&mut self, reason: Option<&'static str>, now: Instant) -> bool {
        let since = match self.seen {
            Some((seen, since)) if seen == reason => since,
            _ => now,
        };
        self.seen = Some((reason, since));
        let is_settled = now.saturating_duration_since(since) >= SETTLED;
        let is_news = is_settled && self.told != Some(reason);
        if is_news {
            self.told = Some(reason);
        }
        is_news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds at which news were told, of a state for each second.
    fn told(states: &[Option<&'static str>]) -> Vec<usize> {
        let (mut standing, begin) = (Standing::default(), Instant::now());
        let mut told = Vec::new();
        for (second, state) in states.iter().enumerate() {
            let now = begin + Duration::from_secs(second as u64);
            if standing.is_news(*state, now) {
                told.push(second);
            }
        }
        told
    }

    #[test]
    fn what_has_lasted_is_told_once() {
        assert_eq!(told(&[None; 60]), [10]);
        let ill = [&[None; 20][..], &[Some("faults"); 40], &[None; 20]].concat();
        assert_eq!(told(&ill), [10, 30, 70]);
    }

    #[test]
    fn what_passes_soon_is_not_told() {
        let blink = [&[None; 20][..], &[Some("faults"); 9], &[None; 30]].concat();
        assert_eq!(told(&blink), [10]);
        let flutters: Vec<_> = (0..60)
            .map(|at| (at % 2 == 0).then_some("faults"))
            .collect();
        assert_eq!(told(&flutters), [0; 0]);
    }

    #[test]
    fn another_reason_is_news() {
        let ill = [&[Some("not listed"); 20][..], &[Some("faults"); 20]].concat();
        assert_eq!(told(&ill), [10, 30]);
    }
}
