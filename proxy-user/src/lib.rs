// SPDX-License-Identifier: Apache-2.0 OR MIT
//! portolan's agent and command line. Read `agent` first: it joins watch -> tracker -> planner -> plan -> datapath.
#![deny(unsafe_code)]

pub mod agent;
mod causes;
pub mod cli;
pub mod config;
pub mod datapath;
mod glob;
pub mod interfaces;
pub mod metrics;
pub mod model;
pub mod object;
pub mod plan;
pub mod planner;
pub mod runbooks;
pub mod server;
pub mod syncer;
pub mod telemetry;
pub mod tracker;
pub mod warnings;
pub mod watch;

#[cfg(test)]
mod testing;
