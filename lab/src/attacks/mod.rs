// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Attacks on a node, and what its clients still get meanwhile: floods, exhausted ports, a deaf
//! backend, a pod that forges another's packets. Run in full by `cargo xtask bench attacks`, and
//! with lower numbers by proxy-user/tests/attacks.
//!
//! `world` is the node with its clients and servers, `proxies` starts the proxy on it, `flood` and
//! `packets` attack, `clients` are the clients to be served; each other module is one attack.
//!
//! The clients themselves must not be the limit: their ports are 1024 to 65535, and
//! `tcp_tw_reuse=1` lets them reuse a port one second after its connection has ended.

pub mod clients;
pub mod deaf;
pub mod flood;
pub mod many;
mod open_connections;
pub mod packets;
pub mod proxies;
mod servers;
pub mod short;
pub mod spoof;
pub mod syn;
pub mod udp;
pub mod world;

/// The result of an attack's run.
pub trait Outcome {
    /// Columns of the table, with their values.
    fn figures(&self) -> Vec<(&'static str, String)>;

    /// Descriptions of the missed goals; none if all are reached.
    fn missed(&self) -> Vec<String>;
}

/// Returns `what` unless a goal is reached.
fn unless(reached: bool, what: impl FnOnce() -> String) -> Option<String> {
    (!reached).then(what)
}
