// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of the datapath with the real kernel: applies, restarts, full maps, refusals, attachments,
//! sweeps, and readers while the agent writes. They need root, and fail without.

mod attach;
mod clsact;
#[path = "../fuzz/flow_table.rs"]
mod flow_table;
mod foreign;
mod interfaces;
mod many;
mod open;
mod publish;
mod readers;
mod reserve;
mod succession;
mod support;
mod sweep;
