// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Signals that ask the process to end: some commands end at once, others clean up first.

use std::{
    process::exit,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal};

/// Starts a thread that waits for one of these signals, and then calls `act`. Must be called before
/// other threads start. Works also in process 1 of a container.
fn wait_for(
    signals: &[Signal],
    act: impl FnOnce(Signal) + Send + 'static,
) -> Result<JoinHandle<()>> {
    let signals: SigSet = signals.iter().copied().collect();
    signals.thread_block().context("wait for signals")?;
    Ok(thread::spawn(move || {
        // Waiting fails only if the set of signals is wrong. The process ends then as well.
        act(signals.wait().unwrap_or(Signal::SIGTERM));
    }))
}

/// Returns a flag that SIGINT, SIGTERM and SIGHUP (the end of the terminal) will set.
pub(super) fn set_by_signals() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&stop);
    let signals = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
    wait_for(&signals, move |_| asked.store(true, Ordering::Relaxed))?;
    Ok(stop)
}

/// The thread that ends the process on SIGTERM and SIGINT.
pub(super) struct Signals {
    thread: JoinHandle<()>,
    /// Whether the process has done its work.
    is_done: Arc<AtomicBool>,
}

impl Signals {
    /// Notes that a signal from now on ends the process with success.
    pub(super) fn done(&self) {
        self.is_done.store(true, Ordering::Relaxed);
    }
    /// Waits for a signal, after the work is done.
    pub(super) fn stay(self) {
        self.done();
        _ = self.thread.join();
    }
}

/// Has SIGTERM and SIGINT end the process. KUBE: an init container that ended with success is not
/// run again, so one that was interrupted ends as a shell says it: with 143.
pub(super) fn end_by_signal() -> Result<Signals> {
    let is_done = Arc::new(AtomicBool::new(false));
    let done = Arc::clone(&is_done);
    let thread = wait_for(&[Signal::SIGTERM, Signal::SIGINT], move |signal| {
        let is_done = done.load(Ordering::Relaxed);
        exit(if is_done { 0 } else { 128 + signal as i32 });
    })?;
    Ok(Signals { thread, is_done })
}
