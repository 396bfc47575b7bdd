// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Describes this machine for reports.

use std::{fs, thread};

use k8s_openapi::jiff::Zoned;

/// Returns today's date, like 2026-11-21.
pub fn today() -> String {
    Zoned::now().date().to_string()
}

/// Returns the version of the running kernel.
pub fn kernel() -> String {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    kernel.trim().to_owned()
}

/// Returns the number of processors that this process may use; 0 if it is unknown.
pub fn processors() -> usize {
    thread::available_parallelism().map_or(0, usize::from)
}

/// Returns the name of the first processor's model.
pub fn processor() -> String {
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    model.map_or("unknown", |(_, name)| name).trim().to_owned()
}
