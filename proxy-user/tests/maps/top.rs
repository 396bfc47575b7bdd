// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests for `portolan top` with many services in the maps, each with endpoints of its own.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use crate::{
    explain::{plans, spent},
    support::{PinDir, in_netns, program},
};

const SERVICES: u32 = 50_000;
/// The number of endpoints of each service; fewer than are counted one by one.
const ENDPOINTS: u32 = 2;
/// The number of runs; the median counts.
const RUNS: usize = 5;
/// An optimised program takes a tenth of this; a test build on a busy machine not much more.
const LIMIT: Duration = Duration::from_secs(10);

#[test]
fn fifty_thousand_services_are_shown_once_in_little_time() {
    in_netns(|| {
        let pins = PinDir::new();
        let mut datapath = pins.open_default();
        let plans = plans(SERVICES, ENDPOINTS);
        let result = datapath.apply(&plans);
        assert!(result.failures.is_empty(), "{:?}", result.failures.first());
        for arguments in [&["--once"][..], &["--once", "--limit", "20"]] {
            let mut times = Vec::new();
            let before = spent();
            for _ in 0..RUNS {
                let begun = Instant::now();
                let output = Command::new(program())
                    .arg("top")
                    .args(arguments)
                    .arg("--pin-dir")
                    .arg(&pins.0)
                    .output()
                    .expect("run");
                times.push(begun.elapsed());
                assert!(output.status.success(), "{output:?}");
                let lines = output.stdout.split(|byte| *byte == b'\n').count();
                let expected = if arguments.len() > 1 { 20 } else { SERVICES };
                assert!(lines > expected as usize, "{lines}");
            }
            let spent = (spent() - before) / RUNS as u32;
            times.sort_unstable();
            let took = times[RUNS / 2];
            println!(
                "@@ figure top {arguments:?} microseconds {} processor {}",
                took.as_micros(),
                spent.as_micros()
            );
            assert!(took < LIMIT, "{took:?}");
        }
    });
}
