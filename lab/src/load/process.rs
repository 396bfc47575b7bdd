// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Processor time and memory that a process has used, from /proc.

use anyhow::{Context, Result};
use nix::unistd::{SysconfVar, sysconf};

/// Returns the seconds of processor time of a process's living threads, to the nanosecond.
pub fn processor_time(pid: u32) -> Result<f64> {
    let mut nanoseconds = 0.0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let times = std::fs::read_to_string(thread?.path().join("schedstat"))?;
        let ran = times.split_whitespace().next();
        let ran = ran.context("read a thread's times")?;
        nanoseconds += ran.parse::<f64>()?;
    }
    Ok(nanoseconds * 1e-9)
}

/// Returns the seconds of processor time of a process, its ended threads, and its children that it
/// has waited for: kube-proxy starts other programs for its work. Exact to a clock tick.
pub fn processor_time_of_all(pid: u32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The program's name before the fields may contain any character.
    let (_, fields) = status.rsplit_once(')').context("read its times")?;
    let ticks: u64 = fields
        .split_whitespace()
        .skip(11)
        .take(4)
        .map(str::parse::<u64>)
        .sum::<Result<_, _>>()?;
    let per_second = sysconf(SysconfVar::CLK_TCK)?.context("the length of a tick")?;
    Ok(ticks as f64 / per_second as f64)
}

/// Returns whether the process has not ended. A zombie has ended.
pub fn is_running(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    status
        .rsplit_once(')')
        .is_some_and(|(_, fields)| !fields.trim_start().starts_with('Z'))
}

/// Returns the resident memory of a process, in MiB.
pub fn resident(pid: u32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    let kib = kib.context("read its memory")?;
    Ok(kib.parse::<f64>()? / 1024.0)
}
