// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tells a command that a signal has asked the process to end, so that the command can clean up
//! first. Used by `trace`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};

/// A flag that is set once a signal has asked the process to end.
#[derive(Clone, Default)]
pub(super) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Returns a flag that SIGINT, SIGTERM and SIGHUP (the end of the terminal) will set.
    pub(super) fn on_signals() -> Result<Self> {
        let stop = Self::default();
        let runtime = super::runtime()?;
        let (mut interrupt, mut terminate, mut hangup) = {
            let _inside = runtime.enter();
            let of = |kind| signal(kind).context("wait for signals");
            (
                of(SignalKind::interrupt())?,
                of(SignalKind::terminate())?,
                of(SignalKind::hangup())?,
            )
        };
        let asked = stop.clone();
        thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    _ = hangup.recv() => {}
                }
            });
            asked.0.store(true, Ordering::Relaxed);
        });
        Ok(stop)
    }

    pub(super) fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
