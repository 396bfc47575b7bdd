// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Attacks on a node, and how well its clients are still served meanwhile: floods, exhausted ports,
//! very many connections. Run by proxy-user/tests/attacks.
//!
//! The module `world` is the node. `proxies` starts the proxy on it, `servers` runs in its server
//! pods. `flood` and `packets` send the attackers' packets. `clients` has the connections to be
//! served. Each other module is one attack.
//!
//! The clients themselves must not be the limit: their ports are 1024 to 65535, and
//! `tcp_tw_reuse=1` lets them reuse a port one second after its connection has ended.

pub mod clients;
pub mod flood;
pub mod many;
mod packets;
pub mod proxies;
mod servers;
pub mod short;
pub mod syn;
pub mod udp;
pub mod world;
