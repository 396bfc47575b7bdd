// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Describes this machine for reports.

use std::{fs, thread};

use k8s_openapi::jiff::Zoned;

/// Returns today's date, like 2026-11-21.
pub fn today() -> String {
    Zoned::now().date().to_string()
}

/// Describes the processors that this process may use, the running kernel, and portolan.
pub fn describe() -> String {
    let read = |file| fs::read_to_string(file).unwrap_or_default();
    let (cpus, kernel) = (read("/proc/cpuinfo"), read("/proc/sys/kernel/osrelease"));
    let mut lines = cpus.lines();
    let model = lines.find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    format!(
        "{} processors of {}, Linux {}, portolan {}",
        thread::available_parallelism().map_or(0, usize::from),
        model.map_or("unknown", |(_, name)| name).trim(),
        kernel.trim(),
        env!("CARGO_PKG_VERSION")
    )
}
