// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A simulated node: network namespaces and a cgroup, the agent on it, and what else runs there.

pub mod agent;
pub mod api_server;
pub mod binary;
pub mod bpffs;
pub mod cgroup;
pub mod foreign;
pub mod layout;
pub mod netns;
pub mod settings;
pub mod topology;
