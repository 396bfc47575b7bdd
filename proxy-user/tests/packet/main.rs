// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packet tests: they run the real programs with BPF_PROG_TEST_RUN on maps that the real apply has
//! filled. They say what the words of `tests/fuzz/cases` cannot: settings, frames and routes that
//! the fuzzer's node does not have, traffic counts, entries that a test changes.

mod answers;
mod counted;
mod entries;
mod node;
mod others;
mod packets;
mod pool;
mod redirect;
mod service;
mod shapes;
mod world;
mod xdp;
