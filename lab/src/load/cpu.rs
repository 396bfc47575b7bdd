// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pins the threads of a benchmark to one CPU.

use anyhow::{Context, Result};
use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};

/// The CPU on which all threads run whose work is timed.
pub const CPU: usize = 0;

/// Pins the calling thread to [`CPU`].
pub fn pin() -> Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(CPU)?;
    sched_setaffinity(Pid::from_raw(0), &cpus).with_context(|| format!("pin to CPU {CPU}"))
}

/// Lets the calling thread run on every CPU again.
pub fn unpin() -> Result<()> {
    let mut cpus = CpuSet::new();
    for cpu in 0..CpuSet::count() {
        cpus.set(cpu)?;
    }
    sched_setaffinity(Pid::from_raw(0), &cpus).context("let it run on every CPU")
}
