// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The datapath of the benchmarks `apply` and `planner`.

use datapath::{Datapath, Options};
use lab::node::bpffs::PinDir;

/// Makes maps in an empty directory of pins, or opens those that are there, and loads the programs.
/// The maps are large enough for 50 000 services, each with a cluster IP and its guard.
pub(crate) fn open(pins: &PinDir) -> Datapath {
    let options = Options {
        pin_dir: pins.path().to_owned(),
        ..Options::default()
    };
    Datapath::open(&options)
        .unwrap_or_else(|error| panic!("open the datapath: {error}; the benchmark needs root"))
}
