// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests for `portolan top` with many services in the maps, each with endpoints of its own.

use std::time::Duration;

use crate::{
    explain::{plans, run_often},
    support::{PinDir, apply, in_netns},
};

const SERVICES: u32 = 50_000;
/// The number of endpoints of each service; fewer than are counted one by one.
const ENDPOINTS: u32 = 2;
/// The number of runs; the median counts.
const RUNS: usize = 5;
/// The limit for the median. An optimised program takes a tenth of it, a test build little more.
const LIMIT: Duration = Duration::from_secs(10);

#[test]
fn top_shows_fifty_thousand_services_within_ten_seconds() {
    in_netns(|| {
        let pins = PinDir::new();
        let mut datapath = pins.open_default();
        apply(&mut datapath, &plans(SERVICES, ENDPOINTS));
        let (all, few) = (&["top"][..], &["top", "--limit", "20"]);
        for (arguments, services) in [(all, SERVICES), (few, 20)] {
            let took = run_often(&pins, arguments, RUNS, |output| {
                assert!(output.status.success(), "{output:?}");
                let lines = output.stdout.split(|byte| *byte == b'\n').count();
                assert!(lines > services as usize, "{lines}");
            });
            assert!(took < LIMIT, "{took:?}");
        }
    });
}
