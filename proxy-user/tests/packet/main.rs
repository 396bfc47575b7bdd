// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packet tests: they run the real programs with BPF_PROG_TEST_RUN on maps that the real apply has
//! filled. They say what the words of `tests/fuzz/cases` cannot: settings, frames and routes that
//! the fuzzer's node does not have, traffic counts, entries that a test changes.

mod carried;
#[path = "../fuzz/context.rs"]
mod context;
mod counted;
mod entries;
#[path = "../fuzz/flow_table.rs"]
mod flow_table;
/// The fuzz's builder of frames, and below its parser, which shares no code with the programs.
#[allow(dead_code, reason = "the fuzz uses the rest")]
#[path = "../fuzz/packets.rs"]
mod frames;
#[allow(dead_code, reason = "the fuzz uses the rest")]
#[path = "../fuzz/kept.rs"]
mod kept;
mod node;
mod others;
mod packets;
mod pool;
mod redirect;
mod service;
/// The fuzz's services, which become plans.
#[allow(dead_code, reason = "the fuzz uses the rest")]
#[path = "../fuzz/services.rs"]
mod services;
mod shapes;
#[allow(dead_code, reason = "the fuzz uses the rest")]
#[path = "../fuzz/model/sums.rs"]
mod sums;
#[allow(dead_code, unused_imports, reason = "the fuzz uses the rest")]
#[path = "../fuzz/model/wire.rs"]
mod wire;
mod world;
mod xdp;

/// By this path the fuzz's modules name each other.
mod model {
    pub(crate) use crate::wire;
}
