// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The processor time of each eBPF program. The kernel measures it while `top --programs` runs.

use std::{cmp::Reverse, collections::BTreeMap, os::fd::OwnedFd};

use datapath::read::{ProgramRun, Reader};
use serde::{Serialize, Serializer};

use crate::{
    counters::rate,
    frame::{SYS_ADMIN, lacks},
    list::Row,
    table::{Column, Value, column, plain},
};

/// A program's processor time between two samples. Rows are sorted by their first fields.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ProgramRow {
    /// What takes most processor time comes first.
    #[serde(skip)]
    weight: Reverse<(u64, u64)>,
    program: String,
    runs_per_second: u64,
    nanoseconds_per_run: u64,
    /// The share of one processor that the program takes, in hundredths of a percent.
    #[serde(rename = "processorPercent", serialize_with = "percent")]
    processor: u64,
}

fn percent<S: Serializer>(hundredths: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(*hundredths as f64 / 100.0)
}

impl Row for ProgramRow {
    const COLUMNS: &'static [Column<Self>] = &[
        column("PROGRAM", 0, |row| plain(row.program.as_str())),
        column("RUNS/S", 0, |row| plain(row.runs_per_second)),
        column("NS/RUN", 0, |row| plain(row.nanoseconds_per_run)),
        column("CPU%", 0, |row| plain(Value::Hundredths(row.processor))),
    ];
    fn name(&self) -> String {
        format!("program/{}", self.program)
    }
}

/// Makes the kernel measure the run times of eBPF programs while the descriptor is open.
pub(super) fn measure() -> Result<OwnedFd, String> {
    let why = match lacks(SYS_ADMIN, "top --programs") {
        Some(lacks) => lacks,
        None => match aya::sys::enable_stats(aya::sys::Stats::RunTime) {
            Ok(measuring) => return Ok(measuring),
            Err(error) => error.to_string(),
        },
    };
    Err(format!(
        "the programs' processor time is not measured: {why}"
    ))
}

/// The processor time of each eBPF program since it was loaded. Key: program id.
pub(super) type Programs = BTreeMap<u32, ProgramRun>;

/// Reads the processor times. None are returned if this process lacks the privilege.
pub(super) fn read(reader: &Reader) -> Programs {
    let runs = reader.program_runs().unwrap_or_default();
    runs.into_iter().map(|run| (run.id, run)).collect()
}

/// Returns the processor time of each program name that ran since the sample `before`.
pub(super) fn since(now: &Programs, before: &Programs, seconds: f64) -> Vec<ProgramRow> {
    let mut sums: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for (id, run) in now {
        // A program that was loaded between the samples started at 0.
        let then = before.get(id);
        let (count, time) = sums.entry(&run.name).or_default();
        *count += run.count - then.map_or(0, |then| then.count).min(run.count);
        *time += run.time - then.map_or(0, |then| then.time).min(run.time);
    }
    let row = |(name, (count, time)): (&str, (u64, u64))| {
        let runs_per_second = rate(count, 0, seconds);
        let nanoseconds_per_run = time / count;
        ProgramRow {
            weight: Reverse((runs_per_second * nanoseconds_per_run, runs_per_second)),
            program: name.to_owned(),
            runs_per_second,
            nanoseconds_per_run,
            processor: (time as f64 / seconds.max(0.001) / 1e7 * 100.0).round() as u64,
        }
    };
    let ran = sums.into_iter().filter(|(_, (count, _))| *count > 0);
    ran.map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn programs(of: &[(u32, &str, u64, u64)]) -> Programs {
        let runs = of.iter().map(|(id, name, count, time)| ProgramRun {
            id: *id,
            name: (*name).to_owned(),
            count: *count,
            time: *time,
        });
        runs.map(|run| (run.id, run)).collect()
    }

    #[test]
    fn a_programs_time_counts_from_the_previous_sample() {
        let before = programs(&[(1, "ingress", 100, 50_000), (2, "egress", 7, 7)]);
        let now = programs(&[
            (1, "ingress", 300, 90_000),
            (2, "egress", 7, 7),
            (3, "ingress", 200, 60_000),
        ]);
        let rows = since(&now, &before, 2.0);
        let json = serde_json::to_value(&rows).expect("rows");
        let expected = serde_json::json!([{
            "program": "ingress", "runsPerSecond": 200, "nanosecondsPerRun": 250, "processorPercent": 0.01,
        }]);
        assert_eq!(json, expected);
    }
}
