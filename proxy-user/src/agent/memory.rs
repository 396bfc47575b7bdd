// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When the agent gives memory back to the kernel: after work that comes once or seldom, and once more when what follows such work is done.

use std::time::Duration;

use tokio::time::Instant;

use crate::datapath;

/// A sync of so many plans leaves enough unused memory to give back.
const MANY_PLANS: usize = 1_000;

/// By then the last interfaces have their programs, hooks are attached, and the API server has been told: what is mapped anew from now on is
/// what the agent needs all the time.
const LATER: Duration = Duration::from_secs(5);

/// The next time to give memory back.
#[derive(Default)]
pub(super) struct Memory(Option<Instant>);

impl Memory {
    /// A sync of so many plans is done, the first one or another.
    pub(super) fn synced(&mut self, first: bool, plans: usize) {
        if first || plans >= MANY_PLANS {
            release();
            self.0 = Some(Instant::now() + LATER);
        }
    }

    /// To be called now and then.
    pub(super) fn look(&mut self, now: Instant) {
        if self.0.is_some_and(|at| at <= now) {
            release();
            self.0 = None;
        }
    }
}

fn release() {
    if let Err(error) = datapath::release_memory() {
        tracing::debug!(%error, "cannot return memory to the kernel");
    }
}
