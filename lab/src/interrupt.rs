// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Turns the signals that end a process into a flag, so that programs can clean up first. Called by
//! the conformance runner, the demo and benchmarks.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// Set by the first SIGINT, SIGTERM or SIGHUP.
pub static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Installs the signal handlers: the first signal sets [`INTERRUPTED`], a second one exits at once.
pub fn catch() -> Result<()> {
    extern "C" fn cancel(_: libc::c_int) {
        if INTERRUPTED.swap(true, Ordering::Relaxed) {
            // SAFETY: _exit is async-signal-safe.
            unsafe { libc::_exit(130) }
        }
    }
    let handler = SigHandler::Handler(cancel);
    let action = SigAction::new(handler, SaFlags::SA_RESTART, SigSet::empty());
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        // SAFETY: the handler stores to an atomic and may call _exit: both are async-signal-safe.
        unsafe { sigaction(signal, &action) }.with_context(|| format!("handle {signal}"))?;
    }
    Ok(())
}
