// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What many agents ask of one real API server, and what they do with the answers: portolan's
//! source of objects beside kube-proxy's informers. proxy-user/benches/fleet runs it.
//!
//! The module `world` is the server and the agents' network, `objects` is what the server has,
//! which `writer` changes. `clients` are the agents' processes, and `lines` is how those report.
//! `phases` measures, by `usage` and by `audit`, which counts requests. `figures`, `rows` and
//! `report` make tables.

mod audit;
pub mod clients;
pub mod figures;
pub mod lines;
pub mod objects;
pub mod phases;
pub mod report;
mod rows;
mod usage;
pub mod world;
mod writer;
