// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Load and measurement for benchmarks: clients and servers, the objects in an API server, repeated
//! rounds, medians with their intervals, and the resources that processes use.

pub mod client;
pub mod cpu;
pub mod machine;
pub mod manifests;
pub mod objects;
pub mod process;
pub mod proxy;
pub mod records;
pub mod server;
pub mod setup;
pub mod statistics;
pub mod table;
