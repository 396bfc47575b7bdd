// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packet tests: the real programs through BPF_PROG_TEST_RUN, maps filled by the real apply. Bytes,
//! verdict, mark and the one counter that moved are asserted; conversations walk through both
//! hooks.

mod conversations;
mod counted;
mod direct;
mod echo;
mod errors;
mod flows;
mod forgers;
mod fragments;
mod imports;
mod lifetimes;
mod maglev;
mod packets;
mod pool;
mod redirect;
mod rejections;
mod service;
mod shadow;
mod shapes;
mod verdicts;
mod world;
mod xdp;
