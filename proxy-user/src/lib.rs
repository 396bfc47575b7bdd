// SPDX-License-Identifier: Apache-2.0 OR MIT
//! portolan's agent. Read `agent` first: it wires watch -> tracker -> planner -> plan -> datapath.
#![deny(unsafe_code)]

pub mod cli;
pub mod datapath;
pub mod interfaces;
pub mod plan;
