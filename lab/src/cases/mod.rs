// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The conformance cases of conformance/FORMAT.md: parses them, gives their objects to the agent,
//! opens and checks their flows.

pub mod cluster;
pub mod cluster_api;
pub mod expectations;
pub mod flows;
pub mod format;
pub mod hosts;
pub mod parse;
pub mod share;
