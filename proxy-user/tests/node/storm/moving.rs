// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The endpoints of the service `Moving` over time: which endpoint may answer, and when a client
//! may get another one.

use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

/// The time from writing a change to the API until no packet follows the old state.
pub(crate) const ALLOWANCE: Duration = Duration::from_secs(3);

/// A set of backends, as bits, and the time in which it may have been in force.
struct Set {
    backends: u8,
    from: Instant,
    until: Option<Instant>,
}

pub(crate) struct Moving(Mutex<Vec<Set>>);

impl Moving {
    pub(crate) fn new(backends: u8) -> Self {
        let first = Set {
            backends,
            from: Instant::now(),
            until: None,
        };
        Self(Mutex::new(vec![first]))
    }

    /// Records a change. With `at_once`, an agent applies it now; otherwise [`Moving::settle`]
    /// records when.
    pub(crate) fn change(&self, backends: u8, at_once: bool) {
        let mut sets = self.0.lock().expect("no panic");
        let now = Instant::now();
        if at_once {
            close(&mut sets, now);
        }
        sets.push(Set {
            backends,
            from: now,
            until: None,
        });
    }

    /// Records that an agent follows all changes from now on.
    pub(crate) fn settle(&self) {
        let mut sets = self.0.lock().expect("no panic");
        let last = sets.pop().expect("one at least");
        close(&mut sets, Instant::now());
        sets.push(last);
    }

    /// Whether this backend may have answered between two moments.
    pub(crate) fn may_answer(&self, backend: u8, from: Instant, to: Instant) -> bool {
        self.any(from, to, |set| set >> backend & 1 == 1)
    }

    /// Whether this backend may have been no endpoint at some time between two moments.
    pub(crate) fn may_be_left(&self, backend: u8, from: Instant, to: Instant) -> bool {
        self.any(from, to, |set| set >> backend & 1 == 0)
    }

    fn any(&self, from: Instant, to: Instant, is_so: impl Fn(u8) -> bool) -> bool {
        let sets = self.0.lock().expect("no panic");
        let mut in_force = sets
            .iter()
            .filter(|set| set.from <= to && set.until.is_none_or(|until| until >= from));
        in_force.any(|set| is_so(set.backends))
    }
}

/// Records that the sets so far are in force only until the end of [`ALLOWANCE`].
fn close(sets: &mut [Set], now: Instant) {
    for set in sets.iter_mut().filter(|set| set.until.is_none()) {
        set.until = Some(now + ALLOWANCE);
    }
}
