// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packet tests: they run the real programs with BPF_PROG_TEST_RUN on maps that the real apply has
//! filled. They check bytes, verdict, mark and the one counter that moved. Connections pass through
//! both hooks.

mod connection;
mod conversations;
mod counted;
mod direct;
mod echo;
mod errors;
mod flows;
mod fragments;
mod lifetimes;
mod maglev;
mod network;
mod packets;
mod pool;
mod redirect;
mod rejections;
mod service;
mod shapes;
mod verdicts;
mod weights;
mod world;
mod xdp;
