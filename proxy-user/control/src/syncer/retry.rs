// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Decides when to try failed services again. Syncs for other reasons neither delay the next
//! attempt nor lengthen its pause. Kept by `syncer`.

use std::time::{Duration, Instant};

/// The pause before the first attempt; each further pause is twice as long.
const FIRST: Duration = Duration::from_secs(1);
/// The longest pause. KUBE: kube-proxy's pause. It is not longer, because a failure that lasts this
/// long counts as a fault.
const LAST: Duration = Duration::from_secs(30);

/// When to try failed services again.
#[derive(Debug, Default)]
pub(super) struct RetryClock {
    /// When the next attempt is due, and the pause before it; None if nothing has failed.
    next: Option<(Instant, Duration)>,
    /// True while the attempt that was due is under way.
    trying: bool,
}

impl RetryClock {
    /// Returns when to try again; None if nothing has failed.
    pub(super) fn due(&self) -> Option<Instant> {
        self.next.map(|(due, _)| due)
    }
    /// Notes that the next sync is the attempt that was due.
    pub(super) fn begin(&mut self) {
        self.trying = true;
    }
    /// Notes the end of a sync, and sets the time of the next attempt if services have failed.
    pub(super) fn end(&mut self, now: Instant, has_failed: bool) {
        let tried = std::mem::take(&mut self.trying);
        let pause = match self.next {
            _ if !has_failed => {
                self.next = None;
                return;
            }
            Some(_) if !tried => return,
            Some((_, pause)) => (2 * pause).min(LAST),
            None => FIRST,
        };
        self.next = Some((now + pause, pause));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_syncs_neither_delay_a_retry_nor_lengthen_the_next_pauses() {
        let start = Instant::now();
        let mut clock = RetryClock::default();
        assert_eq!(clock.due(), None);
        clock.end(start, true);
        assert_eq!(clock.due(), Some(start + FIRST));
        for millisecond in 1..1000 {
            clock.end(start + Duration::from_millis(millisecond), true);
        }
        assert_eq!(clock.due(), Some(start + FIRST));
        let mut now = start + FIRST;
        for pause in [2, 4, 8, 16, 30, 30].map(Duration::from_secs) {
            clock.begin();
            clock.end(now, true);
            clock.end(now + FIRST / 2, true);
            assert_eq!(clock.due(), Some(now + pause));
            now += pause;
        }
        clock.end(now, false);
        assert_eq!(clock.due(), None, "a sync for another reason has mended it");
        clock.end(now, true);
        assert_eq!(clock.due(), Some(now + FIRST), "it begins anew");
    }
}
