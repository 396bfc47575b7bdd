// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares the loaded kernel programs with an independent model: both process the same random
//! sequences of packets and changes. Fails without root. `cargo xtask fuzz` runs it for longer.

/// Returns an error with this text.
macro_rules! fail {
    ($($text:tt)*) => { return Err(format!($($text)*)) };
}

mod cluster;
mod context;
mod errors;
mod flow_table;
mod generate;
mod kept;
mod kernel;
mod model;
mod node;
mod odd;
mod operations;
mod packets;
mod run;
mod runner;
mod services;
mod shorten;
mod subject;
mod text;

use lab::random;
