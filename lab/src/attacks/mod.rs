// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Attacks on a node, and what its clients still get meanwhile: floods, ports used up, a deaf backend, a pod that
//! pretends to be another. Run in full by `cargo xtask bench attacks`, and with lower numbers by proxy-user/tests/attacks.
//!
//! `world` is the node with its clients and servers, `proxies` starts who serves on it, `flood` and `packets` attack,
//! `clients` are those who want to be served; each other module is one attack.
//!
//! The limit must not be the clients themselves: their ports are 1024 to 65535, and `tcp_tw_reuse=1` lets them use
//! a port again one second after its connection has ended.

pub mod clients;
pub mod deaf;
pub mod flood;
mod held;
pub mod many;
pub mod packets;
pub mod proxies;
mod servers;
pub mod short;
pub mod spoof;
pub mod syn;
pub mod udp;
pub mod world;

/// What an attack's run has shown.
pub trait Outcome {
    /// Columns of the table, with their values.
    fn figures(&self) -> Vec<(&'static str, String)>;

    /// The goals that it misses, in words; none where all are reached.
    fn missed(&self) -> Vec<String>;
}

/// Says `what` unless a goal is reached.
fn unless(reached: bool, what: impl FnOnce() -> String) -> Option<String> {
    (!reached).then(what)
}
