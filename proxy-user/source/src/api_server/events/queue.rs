// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The reports about objects that wait to become events. Filled by the set of warnings, emptied by
//! `events`.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use control::{
    model::{Kind, ObjectKey},
    warnings::{Report, Reporter},
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

/// The most reports that may wait; further ones are only in the log.
const LIMIT: usize = 1024;
/// How long a report waits: of what is mended meanwhile, as of objects that come one after the
/// other, there is no event.
const SETTLE: Duration = Duration::from_secs(3);

/// Waiting reports, the oldest first.
#[derive(Debug)]
pub(in crate::api_server) struct Queue {
    of_objects: bool,
    waiting: Mutex<VecDeque<(Instant, Report)>>,
    added: Notify,
}

impl Queue {
    /// Returns an empty queue for reports about nodes, or if `of_objects`, about all other objects.
    pub(super) fn new(of_objects: bool) -> Self {
        Self {
            of_objects,
            waiting: Mutex::default(),
            added: Notify::new(),
        }
    }
    fn waiting(&self) -> MutexGuard<'_, VecDeque<(Instant, Report)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Waits until a report has waited long enough, removes it and returns it.
    pub(super) async fn next(&self) -> Report {
        loop {
            let oldest = self.waiting().front().map(|(since, _)| *since);
            let Some(since) = oldest else {
                self.added.notified().await;
                continue;
            };
            sleep_until(since + SETTLE).await;
            // It may have been withdrawn.
            let mut waiting = self.waiting();
            let is_old = |(since, _): &(Instant, Report)| since.elapsed() >= SETTLE;
            if waiting.front().is_some_and(is_old)
                && let Some((_, report)) = waiting.pop_front()
            {
                return report;
            }
        }
    }
}

impl Reporter for Queue {
    fn report(&self, report: Report) {
        let mut waiting = self.waiting();
        let is_of_node = report.object.kind == Kind::Node;
        if is_of_node != self.of_objects && waiting.len() < LIMIT {
            waiting.push_back((Instant::now(), report));
            self.added.notify_one();
        }
    }
    fn withdraw(&self, object: &ObjectKey, reason: &str) {
        let is_it = |report: &Report| report.object == *object && report.reason == reason;
        self.waiting().retain(|(_, report)| !is_it(report));
    }
}
