// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of the socket hooks with real sockets: the addresses that client and backend see, the
//! hooks' map entries, and how both follow changes of endpoints and settings. They need root.

mod churn;
mod clients;
mod fuzz;
#[path = "../fuzz/kept.rs"]
mod kept;
mod kinds;
mod service;
mod settings;
#[path = "../fuzz/shorten.rs"]
mod shorten;
mod verdicts;
mod world;

use lab::random;
