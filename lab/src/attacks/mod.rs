// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A SYN flood at a node, and how well its clients are still served meanwhile. Run by
//! proxy-user/tests/attacks.
//!
//! The module `world` is the node with the proxy and its server. `flood` sends the attacker's
//! packets. `clients` makes the connections to be served.

pub mod clients;
pub mod flood;
pub mod world;
