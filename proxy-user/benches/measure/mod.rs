// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What benchmarks that time packets and connections share.
#![allow(
    dead_code,
    reason = "each benchmark that includes this uses a part of it"
)]

use anyhow::{Context, Result};
use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};

/// Where everything that is timed runs.
pub(crate) const CPU: usize = 0;

/// Keeps the calling thread on [`CPU`].
pub(crate) fn pin() -> Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(CPU)?;
    sched_setaffinity(Pid::from_raw(0), &cpus).with_context(|| format!("pin to CPU {CPU}"))
}

/// Lets the calling thread run on every CPU again.
pub(crate) fn unpin() -> Result<()> {
    let mut cpus = CpuSet::new();
    for cpu in 0..CpuSet::count() {
        cpus.set(cpu)?;
    }
    sched_setaffinity(Pid::from_raw(0), &cpus).context("let it run on every CPU")
}

/// The middle one, or the mean of the middle two.
pub(crate) fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    } else {
        sorted[middle]
    }
}
