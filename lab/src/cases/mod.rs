// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The cases of conformance/FORMAT.md: parsed, their objects given to the agent, their flows opened and checked.

pub mod cluster;
pub mod cluster_api;
pub mod expectations;
pub mod flows;
pub mod format;
pub mod hosts;
pub mod parse;
