// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares the loaded kernel programs with an independent model: both process the same random
//! sequences of packets and changes. Fails without root. `cargo xtask fuzz` runs it for longer.

mod changes;
mod cluster;
mod complain;
mod errors;
mod generate;
mod kept;
mod kernel;
mod mirror;
mod model;
mod node;
mod numbers;
mod odd;
mod operations;
mod packets;
mod run;
mod runner;
mod scenes;
mod services;
mod shorten;
mod shrink;
mod subject;
mod subjects;
mod tables;
mod text;
mod time;

use lab::random;
