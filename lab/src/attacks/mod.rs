// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Attacks on a node, and how well its clients are still served meanwhile: a flood, and exhausted
//! ports. Run by proxy-user/tests/attacks.
//!
//! The module `world` is the node with the proxy and its servers. `flood` sends the attackers'
//! packets. `clients` has the connections to be served. `kinds` has the attacks.
//!
//! The clients themselves must not be the limit: their ports are 1024 to 65535, and
//! `tcp_tw_reuse=1` lets them reuse a port one second after its connection has ended.

mod clients;
mod flood;
pub mod kinds;
pub mod world;
