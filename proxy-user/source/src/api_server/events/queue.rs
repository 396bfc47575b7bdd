// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The reports about Services and EndpointSlices that wait to become events. Filled by the set of
//! warnings, emptied by `events`.

use std::sync::{Mutex, MutexGuard, PoisonError};

use control::{model::ObjectKey, warnings::Report};
use tokio::sync::Notify;

/// The most reports that may wait.
pub(super) const LIMIT: usize = 256;

/// Waiting reports, in no order.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: Mutex<Vec<Report>>,
    added: Notify,
}

impl Queue {
    fn waiting(&self) -> MutexGuard<'_, Vec<Report>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Adds a report, unless the queue is full.
    pub(super) fn add(&self, report: Report) {
        let mut waiting = self.waiting();
        if waiting.len() < LIMIT {
            waiting.push(report);
            self.added.notify_one();
        }
    }
    /// Removes the report about an object with this reason, if it still waits.
    pub(super) fn withdraw(&self, object: &ObjectKey, reason: &str) {
        let is_other = |report: &Report| report.object != *object || report.reason != reason;
        self.waiting().retain(is_other);
    }
    /// Removes any report and returns it. It is drawn, so that of many reports each node begins
    /// with another.
    pub(super) fn take(&self) -> Option<Report> {
        let mut waiting = self.waiting();
        let number = fastrand::usize(..waiting.len().max(1));
        (number < waiting.len()).then(|| waiting.swap_remove(number))
    }
    /// Waits until there is a report.
    pub(super) async fn filled(&self) {
        while self.waiting().is_empty() {
            self.added.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::event::tests, *};

    fn report(name: &str) -> Report {
        tests::report(name, 1, "conflict")
    }

    #[test]
    fn a_full_queue_takes_no_more_reports() {
        let queue = Queue::default();
        for number in 0..2 * LIMIT {
            queue.add(report(&number.to_string()));
        }
        let taken = std::iter::from_fn(|| queue.take());
        assert_eq!(taken.count(), LIMIT);
    }

    #[test]
    fn a_withdrawn_report_is_not_taken() {
        let queue = Queue::default();
        queue.add(report("cart"));
        queue.add(report("till"));
        queue.withdraw(&report("cart").object, "conflict");
        queue.withdraw(&report("till").object, "another reason");
        assert_eq!(queue.take(), Some(report("till")));
        assert_eq!(queue.take(), None);
    }
}
